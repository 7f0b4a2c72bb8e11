"""The settings of one request: how to sample, when to stop, what to return.

Names, defaults and rules follow vLLM. Every rule is checked when the object is made, so no later
room meets a value that is not finite or out of range. Vocabulary checks happen at admission.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from jengine.beam_search import BeamSearchParams as BeamSearchParams
from jengine.errors import RequestError
from jengine.repetition_detection import (
    RepetitionDetectionParams as RepetitionDetectionParams,
)
from jengine.repetition_detection import (
    checked_repetition_detection,
)
from jengine.sampling_checks import (
    MAX_N,
    boolean,
    checked_bias,
    checked_logprob_ids,
    checked_processors,
    integer,
    logprob_count,
    number,
    plain_dict,
    token_ids,
)
from jengine.sampling_names import refuses_unknown_names
from jengine.structured_outputs import StructuredOutputsParams
from jengine.thinking_budget import checked_budget
from jengine.vllm_names import missing_name

logger = logging.getLogger(__name__)

MAX_STOP_STRINGS = 64
MAX_BAD_WORDS = 128
SMALLEST_TEMPERATURE = 0.01
INT32_LIMIT = 2**31
INT64_LIMIT = 2**63

KV_TRANSFER = "kv_transfer_params"  # among the extra arguments: no logits processor reads them
COPIED = (list, dict, StructuredOutputsParams)  # values of fields that can be changed in place


class RequestOutputKind(Enum):
    """How much each streamed output repeats."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@refuses_unknown_names
@dataclass(kw_only=True)
class SamplingParams:
    """Sampling settings of one request. Invalid values raise RequestError (a ValueError)."""

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    # Ids whose log-probabilities are wanted in place of the likeliest tokens', at most 128.
    logprob_token_ids: list[int] | None = None
    # Log-probabilities as arrays (outputs.StepLogprobs) instead of a dict per token.
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    stream_interval: int | None = None
    logit_bias: Mapping[int | str, float] | None = None
    allowed_token_ids: list[int] | None = None
    skip_reading_prefix_cache: bool | None = None
    structured_outputs: StructuredOutputsParams | None = None
    # The most tokens of reasoning, after which its end is forced; -1: no limit, as None.
    thinking_token_budget: int | None = None
    # Ends an answer whose last tokens repeat themselves, with finish_reason "repetition".
    repetition_detection: RepetitionDetectionParams | dict[str, int] | None = None
    # With enable_return_routed_experts: so many first tokens of the prompt are left out there.
    routed_experts_prompt_start: int = 0
    # Pure JAX functions f(logits) or f(ids, logits) of one row, which run inside the step.
    logits_processors: list[Callable[..., Any]] | None = None
    # Plain data for logits processors that run on the host; its "kv_transfer_params" are for the
    # engine's KV connector.
    extra_args: dict[str, Any] | None = None
    _checked: ClassVar[dict[str, Any] | None] = None  # of an object: its values when last checked

    def __post_init__(self) -> None:
        self._check_counts()
        self._check_numbers()
        self._check_stopping()
        self._check_token_lists()
        if self.is_greedy:
            self.top_p, self.top_k, self.min_p = 1.0, 0, 0.0
            if self.n != 1:
                raise RequestError(
                    f"n={self.n} with temperature=0: greedy answers are all the same. "
                    "Use n=1 or a temperature above 0."
                )
        if self.skip_reading_prefix_cache is None:
            # A cached prompt token has no logits, so its log-probability could not be returned.
            self.skip_reading_prefix_cache = self.prompt_logprobs is not None
        vars(self)["_checked"] = self._values()

    @classmethod
    def from_optional(cls, **given: Any) -> SamplingParams:
        """SamplingParams with None for every default; only `max_tokens=None` means no limit."""
        return cls(**{k: v for k, v in given.items() if v is not None or k == "max_tokens"})

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < 1e-5

    @property
    def num_logprobs(self) -> int | None:
        """How many log-probabilities each position has besides its token's; None: none at all."""
        if self.logprobs is None and self.logprob_token_ids:
            return len(self.logprob_token_ids)
        return self.logprobs

    @property
    def kv_transfer_params(self) -> dict[str, Any] | None:
        """What another engine said of the prompt's blocks, or what is asked about them."""
        return (self.extra_args or {}).get(KV_TRANSFER)

    @property
    def processor_args(self) -> dict[str, Any] | None:
        """The extra arguments of logits processors; None: there are none."""
        own = {
            name: value for name, value in (self.extra_args or {}).items() if name != KV_TRANSFER
        }
        return own or None

    def clone(self, **changes: Any) -> SamplingParams:
        """A checked copy with some fields changed."""
        if "prompt_logprobs" in changes:
            changes.setdefault("skip_reading_prefix_cache", None)  # decided anew
        return replace(self, **changes)

    @property
    def reading(self) -> SamplingParams:
        """How the answer is read: as these parameters say."""
        return self

    def settled(self, **changes: Any) -> SamplingParams:
        """A copy that later changes of this object do not reach.

        Fields are checked again only if any was set since the last check. `changes` are set
        without a check.
        """
        checked = self if self._checked == self._values() else self.clone()
        copy = object.__new__(type(checked))
        vars(copy).update({**vars(checked), **checked._values(), **changes})
        vars(copy)["_checked"] = copy._values()
        return copy

    def _values(self) -> dict[str, Any]:
        """The fields' values, with lists and dicts copied."""
        return {
            name: value.copy() if isinstance(value, COPIED) else value
            for name, value in vars(self).items()
            if name != "_checked"
        }

    def _check_counts(self) -> None:
        self.n = integer("n", self.n, 1, MAX_N)
        if self.max_tokens is not None:
            self.max_tokens = integer("max_tokens", self.max_tokens, 1)
        self.min_tokens = integer("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens={self.min_tokens} is above max_tokens={self.max_tokens}."
            )
        self.logprobs = logprob_count("logprobs", self.logprobs)
        self.prompt_logprobs = logprob_count("prompt_logprobs", self.prompt_logprobs)
        self.logprob_token_ids = checked_logprob_ids(self.logprob_token_ids, self.logprobs)
        self.routed_experts_prompt_start = integer(
            "routed_experts_prompt_start", self.routed_experts_prompt_start, 0, INT32_LIMIT - 1
        )
        self.thinking_token_budget = checked_budget(self.thinking_token_budget)
        if self.stream_interval is not None:
            self.stream_interval = integer("stream_interval", self.stream_interval, 1)
        if self.seed is not None:
            seed = integer("seed", self.seed, -INT64_LIMIT, INT64_LIMIT - 1)
            self.seed = None if seed == -1 else seed

    def _check_numbers(self) -> None:
        self.presence_penalty = number("presence_penalty", self.presence_penalty, -2, 2)
        self.frequency_penalty = number("frequency_penalty", self.frequency_penalty, -2, 2)
        self.repetition_penalty = number("repetition_penalty", self.repetition_penalty, 0, None)
        if self.repetition_penalty == 0:
            raise RequestError("repetition_penalty=0: expected a number above 0 (1 is off).")
        self.temperature = number("temperature", self.temperature, 0, 2)
        if 1e-5 <= self.temperature < SMALLEST_TEMPERATURE:
            logger.warning("temperature=%g is raised to %g", self.temperature, SMALLEST_TEMPERATURE)
            self.temperature = SMALLEST_TEMPERATURE
        self.top_p = number("top_p", self.top_p, 0, 1)
        if self.top_p == 0:
            raise RequestError("top_p=0: expected a number above 0 and at most 1 (1 is off).")
        self.min_p = number("min_p", self.min_p, 0, 1)
        self.top_k = max(integer("top_k", self.top_k, -1), 0)

    def _check_stopping(self) -> None:
        stop = [self.stop] if isinstance(self.stop, str) else list(self.stop or [])
        if any(not isinstance(item, str) or not item for item in stop):
            raise RequestError(f"stop={self.stop!r}: expected strings that are not empty.")
        if len(stop) > MAX_STOP_STRINGS:
            raise RequestError(f"stop has {len(stop)} strings; the most is {MAX_STOP_STRINGS}.")
        if stop and not self.detokenize:
            raise RequestError("stop strings need detokenize=True; use stop_token_ids instead.")
        self.stop = stop
        ids = token_ids("stop_token_ids", self.stop_token_ids or [])
        self.stop_token_ids = list(dict.fromkeys(ids))
        self.repetition_detection = checked_repetition_detection(self.repetition_detection)
        if not isinstance(self.output_kind, RequestOutputKind):
            raise RequestError(f"output_kind={self.output_kind!r}: expected a RequestOutputKind.")
        for name in (
            "ignore_eos",
            "flat_logprobs",
            "detokenize",
            "skip_special_tokens",
            "spaces_between_special_tokens",
            "include_stop_str_in_output",
        ):
            boolean(name, vars(self)[name])

    def _check_token_lists(self) -> None:
        if self.logit_bias is not None:
            self.logit_bias = checked_bias(self.logit_bias)
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = token_ids("allowed_token_ids", self.allowed_token_ids)
            if not self.allowed_token_ids:
                raise RequestError("allowed_token_ids=[]: expected at least one token id.")
        structured = self.structured_outputs
        if structured is not None and not isinstance(structured, StructuredOutputsParams):
            raise RequestError(
                f"structured_outputs is a {type(structured).__name__}; expected "
                "StructuredOutputsParams(json=..., regex=..., choice=... or grammar=...)."
            )
        if self.logits_processors is not None:
            self.logits_processors = checked_processors(self.logits_processors)
        self.extra_args = plain_dict("extra_args", self.extra_args)
        if not isinstance(self.kv_transfer_params, (dict, type(None))):
            raise RequestError(
                f"kv_transfer_params={self.kv_transfer_params!r:.80}: expected a dict, as the "
                "engine that has the blocks has answered it."
            )
        words = list(self.bad_words or [])
        if any(not isinstance(word, str) or not word for word in words):
            raise RequestError(f"bad_words={self.bad_words!r}: expected non-empty strings.")
        if len(words) > MAX_BAD_WORDS:
            raise RequestError(f"bad_words has {len(words)} entries; the most is {MAX_BAD_WORDS}.")
        self.bad_words = words


if not TYPE_CHECKING:  # a checker would take every name for a name of this module

    def __getattr__(name: str) -> Any:
        raise missing_name(__name__, name, is_package=False)
