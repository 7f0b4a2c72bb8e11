"""Reads how a model pools, from config.json, sentence-transformers' files and the user's
PoolerConfig.

In: parsed files. Out: a PoolingConfig. Must not know files, tokenizers or engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from jengine.config import (
    HeadLayer,
    ModelConfig,
    PoolerConfig,
    PoolingConfig,
    PoolingTask,
    SequencePooling,
    TokenPooling,
)
from jengine.errors import CheckpointError, ConfigError
from jengine.models.reading.fields import Fields

Convert = Literal["auto", "none", "embed", "classify"]
# Suffixes of generative classes; checked first, since pooling suffixes match some of them.
WRITING = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "ChatModel")
# Class name suffix -> conversion.
CONVERTED: dict[str, Literal["embed", "classify"]] = {
    "ForTextEncoding": "embed",
    "EmbeddingModel": "embed",
    "ForEmbedding": "embed",
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "classify",
    "ForRewardModel": "classify",
    "ForProcessRewardModel": "classify",
    "Model": "embed",
    "ForMaskedLM": "embed",
    "HF_ColBERT": "embed",
}
ACTIVATIONS: dict[str, Literal["tanh", "relu", "gelu", "silu"] | None] = {
    "Identity": None, "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu",
}  # fmt: skip
PROBLEMS: dict[str, Literal["sigmoid", "softmax", "none"]] = {
    "regression": "none",
    "multi_label_classification": "sigmoid",
}
CLASS_ACTIVATIONS: dict[str, Literal["sigmoid", "softmax", "none"]] = {
    "Sigmoid": "sigmoid", "Softmax": "softmax", "Identity": "none",
}  # fmt: skip
MOST_LABELS = 2**20


@dataclass(frozen=True)
class OwnPooling:
    """A family's pooling, if it is not last-token pooling."""

    sequence: SequencePooling
    head: tuple[HeadLayer, ...] = ()
    head_of_tokens: tuple[int, int] | None = None
    task: PoolingTask | None = None  # None: by class name


@dataclass(frozen=True)
class PoolingFacts:
    """Pooling settings outside config.json. `dense`: sentence-transformers' Dense layers."""

    convert: Convert = "auto"
    user: PoolerConfig = field(default_factory=PoolerConfig)
    sequence: str | None = None
    normalizes: bool | None = None
    dense: tuple[HeadLayer, ...] = ()
    prompts: tuple[tuple[str, str], ...] = ()
    token_ids: tuple[int, ...] = ()  # token ids of `classifier_from_token`


def pools_by_name(architecture: str) -> bool:
    """Whether a class name denotes a pooling model."""
    return not architecture.endswith(WRITING) and architecture.endswith(tuple(CONVERTED))


def read_pooling(
    hf: Mapping[str, object], config: ModelConfig, facts: PoolingFacts, own: OwnPooling | None
) -> PoolingConfig:
    """Combine all sources into the model's pooling. Raises CheckpointError, or ConfigError for the
    user's settings."""
    fields, architecture, user = Fields(hf), config.architecture, facts.user
    convert = converted(architecture, facts.convert)
    labels = label_names(fields, architecture) if convert == "classify" else ()
    head, difference = head_of(fields, config, facts, own, convert, len(labels))
    if difference:
        labels = labels[:1] or ("LABEL_0",)
    tasks = tasks_of(architecture, convert)
    sequence = user.seq_pooling_type or one_of_kind(user, ("CLS", "LAST", "MEAN"))
    by_token = user.tok_pooling_type or one_of_kind(user, ("ALL", "STEP"))
    usual = facts.sequence or (own.sequence if own else "LAST")
    usual_tokens = "STEP" if architecture.endswith("ForProcessRewardModel") else "ALL"
    task = user.task or (own and own.task) or default_task(tasks, architecture)
    if task not in tasks:
        raise ConfigError(
            f"pooler_config task={task!r}: unsupported task. Supported tasks: {', '.join(tasks)}."
        )
    use = facts.normalizes if user.use_activation is None else user.use_activation
    return PoolingConfig(
        tasks=tasks,
        task=task,
        sequence=cast(SequencePooling, sequence or usual),
        tokens=cast(TokenPooling, by_token or usual_tokens),
        head=head,
        head_of_tokens=own.head_of_tokens if own and convert == "classify" else None,
        use_activation=use,
        activation=class_activation(fields, 1 if difference else len(labels)),
        labels=len(labels),
        label_names=labels,
        difference=difference,
        dimensions=user.dimensions,
        matryoshka=bool(hf.get("matryoshka_dimensions")) or hf.get("is_matryoshka") is True,
        matryoshka_dimensions=fields.integers(
            "matryoshka_dimensions", None, maximum=MOST_LABELS, each="a width"
        ),
        logit_mean=user.logit_mean,
        logit_sigma=user.logit_sigma,
        step_tag_id=user.step_tag_id,
        returned_token_ids=tuple(user.returned_token_ids or ()),
        prompts=facts.prompts,
        joins_pairs=hf.get("use_sep_token", not facts.token_ids) is False,
    )


def one_of_kind(user: PoolerConfig, kinds: Sequence[str]) -> str | None:
    """The user's `pooling_type`, if it is one of these kinds; else None."""
    return user.pooling_type if user.pooling_type in kinds else None


def converted(architecture: str, convert: Convert) -> Literal["embed", "classify"]:
    """Resolve convert="auto" by the class name; unknown names embed."""
    if convert in ("embed", "classify"):
        return cast(Literal["embed", "classify"], convert)
    return next((kind for end, kind in CONVERTED.items() if architecture.endswith(end)), "embed")


def tasks_of(architecture: str, convert: str) -> tuple[PoolingTask, ...]:
    """Tasks of this class, the default first."""
    if architecture.endswith("RewardModel"):
        return ("token_classify",)
    return ("embed", "token_embed") if convert == "embed" else ("classify", "token_classify")


def default_task(tasks: tuple[PoolingTask, ...], architecture: str) -> PoolingTask:
    """Task used when a request names none."""
    return "token_classify" if "ForTokenClassification" in architecture else tasks[0]


def label_names(fields: Fields, architecture: str) -> tuple[str, ...]:
    """Class names by index; LABEL_i where config.json has none."""
    named = fields.part("id2label")
    if architecture.endswith("RewardModel"):
        return tuple(f"LABEL_{i}" for i in range(2 if "Process" in architecture else 1))
    if named is not None and fields.values.get("num_labels") in (None, len(named.values)):
        try:
            pairs = sorted((int(index), str(name)) for index, name in named.values.items())
        except (TypeError, ValueError):
            fields.refuse("id2label", "an object from numbers to names")
        return tuple(name for _, name in pairs)
    count = fields.integer("num_labels", 2, maximum=MOST_LABELS)
    return tuple(f"LABEL_{index}" for index in range(count))


def head_of(
    fields: Fields,
    config: ModelConfig,
    facts: PoolingFacts,
    own: OwnPooling | None,
    convert: str,
    labels: int,
) -> tuple[tuple[HeadLayer, ...], bool]:
    """Matmuls after pooling, and whether the score is the difference of two outputs."""
    if convert == "embed":
        return (facts.dense or (own.head if own else ())), False
    if facts.token_ids:
        return from_tokens(fields, config, facts.token_ids)
    if own is not None and own.head:
        return own.head, False
    if config.architecture.endswith("RewardModel"):
        hidden = config.hidden_size
        return (HeadLayer(hidden, "score.0", "relu"), HeadLayer(labels, "score.2")), False
    bias = config.architecture.endswith("ForTokenClassification")
    return (HeadLayer(labels, "score", bias=bias),), False


def from_tokens(
    fields: Fields, config: ModelConfig, ids: tuple[int, ...]
) -> tuple[tuple[HeadLayer, ...], bool]:
    """Classifier made of rows of the output head for given tokens (rerankers)."""
    method = fields.values.get("method")
    two_way = method == "from_2_way_softmax" or fields.values.get("is_original_qwen3_reranker")
    if not two_way and method not in (None, "no_post_processing"):
        fields.refuse("method", "from_2_way_softmax or no_post_processing")
    if two_way and len(ids) != 2:
        fields.refuse("classifier_from_token", "two tokens, as a softmax of two ways needs")
    if any(not 0 <= one < config.vocab_size for one in ids):
        raise CheckpointError(f"classifier_from_token has ids {ids} outside the vocabulary.")
    name = "model.embed_tokens" if config.tie_embeddings else "lm_head"
    return (HeadLayer(len(ids), name, bias=False, rows=ids),), bool(two_way)


def class_activation(fields: Fields, labels: int) -> Literal["sigmoid", "softmax", "none"]:
    """Activation of class scores, from `problem_type` as in transformers, or cross-encoder
    settings."""
    usual: Literal["sigmoid", "softmax"] = "sigmoid" if labels < 2 else "softmax"
    problem = fields.values.get("problem_type")
    if problem == "single_label_classification":
        return usual
    if isinstance(problem, str) and problem in PROBLEMS:
        return PROBLEMS[problem]
    inner: Any = fields.values.get("sentence_transformers")
    name = inner.get("activation_fn") if isinstance(inner, Mapping) else None
    key = "sentence_transformers" if name else "sbert_ce_default_activation_function"
    name = name or fields.values.get(key)
    if name is None:
        return usual
    kind = str(name).rpartition(".")[2]
    if kind not in CLASS_ACTIVATIONS:
        fields.refuse(key, f"one of torch's {', '.join(CLASS_ACTIVATIONS)}")
    return CLASS_ACTIVATIONS[kind]
