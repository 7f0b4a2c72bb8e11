"""How a model turns hidden states into vectors or scores: `PoolingConfig` of a model, and
`PoolerConfig`, which is what users say about it, by vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PoolingTask = Literal["embed", "classify", "token_embed", "token_classify"]
# Of one vector per prompt, and of one per token.
SEQUENCE_TASKS = ("embed", "classify")
TOKEN_TASKS = ("token_embed", "token_classify")
SequencePooling = Literal["CLS", "LAST", "MEAN"]
TokenPooling = Literal["ALL", "STEP"]


@dataclass(frozen=True)
class HeadLayer:
    """One matmul after pooling, with norm and activation."""

    outputs: int
    # The tensors of a checkpoint are `{name}.weight` and `{name}.bias`.
    name: str
    activation: Literal["tanh", "relu", "gelu", "silu"] | None = None
    bias: bool = True
    # What the checkpoint calls a layer norm after the activation; None: there is none.
    norm: str | None = None
    norm_bias: bool = True
    # Rows of the tensor `{name}.weight`, in place of all of them: ids of tokens.
    rows: tuple[int, ...] = ()


@dataclass(frozen=True)
class PoolingConfig:
    """How hidden states become results. The device pools and runs the head; the host post-processes
    its float32 outputs."""

    tasks: tuple[PoolingTask, ...]  # that the model can do
    task: PoolingTask  # that it does
    sequence: SequencePooling = "LAST"
    tokens: TokenPooling = "ALL"
    head: tuple[HeadLayer, ...] = ()
    head_of_tokens: tuple[int, int] | None = None  # of its layers those that tokens pass
    use_activation: bool | None = None  # None: yes
    # Of classes: one label has a sigmoid, several have a softmax, unless config.json says other.
    activation: Literal["sigmoid", "softmax", "none"] = "softmax"
    labels: int = 0  # 0: it does not classify
    label_names: tuple[str, ...] = ()
    # Whether the result is the difference of the last output and the first one.
    difference: bool = False
    dimensions: int | None = None  # of embeddings, where a request does not say
    matryoshka: bool = False
    matryoshka_dimensions: tuple[int, ...] = ()
    logit_mean: float | None = None
    logit_sigma: float | None = None
    step_tag_id: int | None = None
    returned_token_ids: tuple[int, ...] = ()
    # Texts that sentence-transformers puts before queries, passages and the like, with their names.
    prompts: tuple[tuple[str, str], ...] = ()
    max_length: int | None = None  # of prompts, where users do not say; None: the model's own
    # Whether query and document of a reranker are one text, with nothing in between.
    joins_pairs: bool = False
    lower_case: bool = False  # whether texts are lower-cased before they are tokenized

    @property
    def pooled_as(self) -> str:
        """What a step returns per row, one of POOLED_AS."""
        return "tokens" if self.task in TOKEN_TASKS else "vectors"

    @property
    def sums_tokens(self) -> bool:
        """Whether the pooled vector depends on tokens in earlier chunks."""
        return self.sequence != "LAST"

    @property
    def needs_every_token(self) -> bool:
        """Whether every prompt token must run, even if cached."""
        return self.sums_tokens or self.task in TOKEN_TASKS


@dataclass(frozen=True, kw_only=True)
class PoolerConfig:
    """How an engine pools, by vLLM's names; None keeps what the model says.

    Attributes:
        task: What `LLM.encode` returns: embeddings or class scores, per prompt or per token.
        pooling_type: One of the next two, by the value.
        seq_pooling_type: Which hidden state stands for a prompt: first, last, or the mean of all.
        tok_pooling_type: Which tokens have results: all, or those whose id is `step_tag_id`.
        use_activation: Whether embeddings are normalized, and class scores passed through sigmoid
            or softmax.
        dimensions: Length that Matryoshka embeddings are cut to.
        enable_chunked_processing: Refused: long texts are not embedded in parts.
        max_embed_len: Refused, alike.
        logit_mean: Subtracted from class scores before the activation.
        logit_sigma: Class scores are divided by it, after `logit_mean`.
        step_tag_id: The token that ends a step, for process reward models.
        returned_token_ids: With STEP pooling, the only classes that are returned.
    """

    task: PoolingTask | None = None
    pooling_type: SequencePooling | TokenPooling | None = None
    seq_pooling_type: SequencePooling | None = None
    tok_pooling_type: TokenPooling | None = None
    use_activation: bool | None = None
    dimensions: int | None = None
    enable_chunked_processing: bool = False
    max_embed_len: int | None = None
    logit_mean: float | None = None
    logit_sigma: float | None = None
    step_tag_id: int | None = None
    returned_token_ids: list[int] | None = None
