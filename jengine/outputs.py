"""Outputs: `StepOutput` of a step, `TokenDelta` of a request, `RequestOutput` for the user.

A `TokenDelta` is what the engine core knows after a step: ids and numbers. The output processor
adds text. Field names follow vLLM's; jengine adds `tokens`, `logprobs_array`, `weight_version`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from jengine.adapters import LoRARequest
from jengine.counts import Counts as Counts
from jengine.counts import RequestTimes
from jengine.logprobs import LogprobTables, StepLogprobs, Table
from jengine.pictures.request_html import request_html
from jengine.pooling_outputs import ClassificationOutput as ClassificationOutput
from jengine.pooling_outputs import ClassificationRequestOutput as ClassificationRequestOutput
from jengine.pooling_outputs import EmbeddingOutput as EmbeddingOutput
from jengine.pooling_outputs import EmbeddingRequestOutput as EmbeddingRequestOutput
from jengine.pooling_outputs import PoolingOutput as PoolingOutput
from jengine.pooling_outputs import PoolingRequestOutput as PoolingRequestOutput
from jengine.pooling_outputs import ScoringOutput as ScoringOutput
from jengine.pooling_outputs import ScoringRequestOutput as ScoringRequestOutput
from jengine.vllm_names import missing_name

SampleLogprobs = Sequence[Table]
PromptLogprobs = Sequence[Table | None]


# Token of an entry with non-finite logits. Ends the request.
NOT_FINITE = -1
# Padding after the last token of an entry with fewer tokens than others.
NO_TOKEN = -3
# Replaces an id beyond the vocabulary, which only a broken kernel returns. Ends the request.
NO_SUCH_TOKEN = -2
# Replaces a token that the row's grammar rejects. Ends the request.
REFUSED = -4
# Token of a pooling entry, which samples none. Ends the request.
POOLED = -5


class Refusal(NamedTuple):
    """Why a token was rejected."""

    text: str
    by_request: bool = False  # the request's fault, not a defect of ours


class StepOutput(NamedTuple):
    """Results of one step.

    From the compiled step they have an item per sampling slot and per token of its bucket. Read on
    the host, they have an item per entry that wants tokens, and per token that the plan runs, both
    in the order of the plan's entries. An entry may get several tokens.
    """

    tokens: Any  # i32[entries, runs]; NO_TOKEN after the last one of an entry with fewer
    logprobs: StepLogprobs | None = None  # [entries, runs, ...] of the sampled tokens
    prompt_logprobs: StepLogprobs | None = None  # of the token after each prefill token
    # Number of a set of taps -> tap point -> f32[tokens, width]. On the device there is one entry
    # per set, keyed by its first number and their count.
    captured: dict[Any, dict[str, Any]] = {}
    experts: Any = None  # u8 or u16 [tokens, layers, chosen]: routed experts
    refusals: dict[int, Refusal] = {}  # item -> why its token is rejected; made on the host
    # Item -> tokens that a grammar forces after the sampled ones; made on the host.
    forced: dict[int, list[int]] = {}
    # Number -> success of the fetches that ended since the last plan.
    transfers_done: dict[int, bool] = {}
    pooled: Any = None  # f32[entries, width]: pooled rows
    pooled_tokens: Any = None  # f32[tokens of prefill chunks, width]: per-token outputs
    # i32[rows, drafts]: drafts made for the tokens after each row's last one, -1: none.
    next_drafts: Any = None


class TokenDelta(msgspec.Struct, kw_only=True, gc=False):
    """New tokens of one request after one step, or its end. Never part of a reference cycle
    (`gc=False`)."""

    request_id: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: StepLogprobs | None = None  # of the new tokens
    # Of the whole prompt, with the first output token.
    prompt_logprobs: StepLogprobs | None = None
    captured: Any = None  # tap point -> f32 [tokens, width] of undelivered tokens
    # u8 or u16 [tokens, layers, chosen]: routed experts of undelivered tokens.
    routed_experts: Any = None
    pooled: Any = None  # f32[width], or f32[prompt, width]: the pooled result
    num_cached_tokens: int = 0
    weights_version: int = 0
    message: str | None = None
    engine_lost: bool = False  # ended by the engine's death: another engine may answer the request
    refused: bool = False  # `message` is of a RequestError in the core
    times: RequestTimes | None = None  # with the first tokens and at the end
    kv_transfer: dict[str, Any] | None = None  # at the end: where its blocks can be fetched


@dataclass
class CompletionOutput:
    """One answer to a prompt."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: SampleLogprobs | StepLogprobs | None = None
    # u8 or u16 [tokens that ran, layers, chosen], when finished: routed experts from
    # `routed_experts_prompt_start` on; zeros for layers without experts.
    routed_experts: np.ndarray | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: LoRARequest | None = None
    # Tap point -> f32 [tokens that ran, width]: prompt and answer except its last token.
    captured: dict[str, np.ndarray] | None = field(default=None, repr=False)

    def finished(self) -> bool:
        """Whether the answer is complete."""
        return self.finish_reason is not None

    @property
    def tokens(self) -> np.ndarray:
        """The token ids as an int32 array."""
        return np.asarray(self.token_ids, dtype=np.int32)

    @property
    def logprobs_array(self) -> np.ndarray | None:
        """Log-probability of each token, float32; None if not requested."""
        if self.logprobs is None:
            return None
        if isinstance(self.logprobs, StepLogprobs):
            return self.logprobs.values[:, 0]
        if isinstance(self.logprobs, LogprobTables):
            return self.logprobs.scores.values[:, 0]
        pairs = zip(self.token_ids, self.logprobs, strict=True)
        return np.asarray([table[token].logprob for token, table in pairs], dtype=np.float32)


@dataclass
class RequestMetrics:
    """Times of a request, in seconds.

    `*_ts` fields are on the monotonic clock of the process that reads the outputs, 0 until known;
    their differences are measured by the core. With n > 1 they are of the completion with the
    earliest first token.
    """

    time_to_first_token: float | None = None  # since the request arrived
    finished: float | None = None  # since the request arrived
    num_generation_tokens: int = 0  # of all completions
    num_preemptions: int = 0
    arrival_time: float = 0.0  # on the wall clock, for display
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    first_token_latency: float = 0.0  # as time_to_first_token; 0 until there is a token
    is_corrupted: bool = False  # ended by non-finite logits


@dataclass
class RequestOutput:
    """A prompt and its completions, finished or partial."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    # With flat_logprobs: arrays whose first entry is for the second token of the prompt.
    prompt_logprobs: PromptLogprobs | StepLogprobs | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    lora_request: LoRARequest | None = None
    encoder_prompt: None = None
    encoder_prompt_token_ids: None = None
    num_cached_tokens: int = 0
    kv_transfer_params: dict[str, Any] | None = None  # at the end: for the engine that continues
    weight_version: int = 0
    error: str | None = None
    # The engine died: another one may answer the request.
    engine_lost: bool = field(default=False, repr=False)
    # The request is invalid, as the error says.
    refused: bool = field(default=False, repr=False)
    # A pooling model's raw result.
    pooled: np.ndarray | None = field(default=None, repr=False)

    @property
    def captured(self) -> dict[str, np.ndarray] | None:
        """Captures of the first completion; with n > 1 each completion has its own."""
        return self.outputs[0].captured

    def _repr_html_(self) -> str:
        return request_html(self)


if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name

    def __getattr__(name: str) -> Any:
        raise missing_name(__name__, name, is_package=False)
