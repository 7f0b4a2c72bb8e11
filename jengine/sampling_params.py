"""Sampling parameters of a request: how to sample, when to stop, what to return.

Names, defaults and rules follow vLLM. Validated at construction, so that later code never meets
non-finite or out-of-range values. Checks against the vocabulary happen at admission.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from jengine.beam_search import BeamSearchParams as BeamSearchParams
from jengine.errors import RequestError
from jengine.repetition_detection import (
    RepetitionDetectionParams as RepetitionDetectionParams,
)
from jengine.repetition_detection import (
    checked_repetition_detection,
)
from jengine.request_parameters import (
    Amount,
    AmountOrAll,
    AmountOrNone,
    Bias,
    Given,
    Parameter,
    Texts,
    TokenId,
    check_all,
    declared,
    given_on,
)
from jengine.sampling_checks import (
    MAX_N,
    check_number_of_ids,
    checked_bias,
    checked_processors,
    ending_ids,
    forbidden_words,
    logprob_count,
    logprob_ids,
    plain_dict,
    some_token_ids,
    stop_strings,
)
from jengine.sampling_names import refuses_unknown_names
from jengine.structured_outputs import StructuredOutputsParams, checked_structured
from jengine.thinking_budget import checked_budget
from jengine.vllm_names import missing_name

logger = logging.getLogger(__name__)

TEXT, SAMPLED = Given.TEXT, Given.SAMPLED

GREEDY_BELOW = 1e-5  # temperatures below count as 0 (greedy)
SMALLEST_TEMPERATURE = 0.01
INT32_LIMIT = 2**31
INT64_LIMIT = 2**63

KV_TRANSFER = "kv_transfer_params"  # key in `extra_args`, not passed to logits processors
COPIED = (list, dict, StructuredOutputsParams)  # mutable field values


class RequestOutputKind(Enum):
    """Contents of a request's outputs: all tokens so far, only new ones, or a single final
    output."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


def checked_output_kind(name: str, value: Any) -> RequestOutputKind:
    """A RequestOutputKind, or a RequestError."""
    if not isinstance(value, RequestOutputKind):
        raise RequestError(f"{name}={value!r}: expected a RequestOutputKind.")
    return value


@refuses_unknown_names
@dataclass(kw_only=True)
class SamplingParams:
    """Sampling settings of one request. Invalid values raise RequestError (a ValueError).

    The fields are the table of request parameters: see `request_parameters`.
    """

    max_tokens: Annotated[int | None, Parameter(
        least=1, on=TEXT, help="most tokens of an answer"
    )] = 16  # fmt: skip
    min_tokens: Annotated[int, Parameter(
        least=0, on=TEXT | Given.ROW, adjusts=True, help="fewest tokens of an answer"
    )] = 0  # fmt: skip
    temperature: Annotated[float, Parameter(
        least=0, most=2, on=SAMPLED | Given.MESSAGES,
        help="0 always takes the likeliest token, higher is more varied"
    )] = 1.0  # fmt: skip
    top_p: Annotated[float, Parameter(
        above=0, most=1, on=SAMPLED | Given.MESSAGES,
        help="sample among the likeliest tokens that together have this probability"
    )] = 1.0  # fmt: skip
    top_k: Annotated[int, Parameter(
        least=-1, on=SAMPLED | Given.MESSAGES,
        help="sample among this many likeliest tokens; 0: all"
    )] = 0  # fmt: skip
    min_p: Annotated[float, Parameter(
        least=0, most=1, on=SAMPLED, help="drop tokens less likely than this share of the likeliest"
    )] = 0.0  # fmt: skip
    stop: Annotated[str | list[str] | None, Parameter(
        json=str | Texts, check=stop_strings, on=TEXT,
        help="end the answer before this text; may be given several times"
    )] = None  # fmt: skip
    n: Annotated[int, Parameter(
        least=1, most=MAX_N, json=Amount, on=TEXT, help="answers to each prompt"
    )] = 1  # fmt: skip
    presence_penalty: Annotated[float, Parameter(
        least=-2, most=2, on=SAMPLED, adjusts=True,
        help="above 0 penalises tokens that have occurred"
    )] = 0.0  # fmt: skip
    frequency_penalty: Annotated[float, Parameter(
        least=-2, most=2, on=SAMPLED, adjusts=True,
        help="above 0 penalises tokens by how often they occurred"
    )] = 0.0  # fmt: skip
    repetition_penalty: Annotated[float, Parameter(
        above=0, on=SAMPLED, adjusts=True,
        help="above 1 penalises tokens of the prompt and the answer"
    )] = 1.0  # fmt: skip
    logprobs: Annotated[int | None, Parameter(
        check=logprob_count, on=Given.BENCH,
        help="return this many log-probabilities per token (shown with --json)"
    )] = None  # fmt: skip
    ignore_eos: Annotated[bool, Parameter(on=TEXT, help="go on after the end token")] = False
    seed: Annotated[int | None, Parameter(
        least=-INT64_LIMIT, most=INT64_LIMIT - 1, on=TEXT | Given.AUDIO
    )] = None  # fmt: skip
    stop_token_ids: Annotated[list[int] | None, Parameter(
        json=list[TokenId], check=ending_ids, on=TEXT
    )] = None  # fmt: skip
    bad_words: Annotated[list[str] | None, Parameter(
        json=Texts, check=forbidden_words, on=TEXT
    )] = None  # fmt: skip
    prompt_logprobs: Annotated[int | None, Parameter(
        json=AmountOrAll, check=logprob_count, on=TEXT
    )] = None  # fmt: skip
    # Report the log-probabilities of these ids (at most 128) instead of the top ones.
    logprob_token_ids: Annotated[list[int] | None, Parameter(
        json=list[TokenId], check=logprob_ids, on=TEXT
    )] = None  # fmt: skip
    # Log-probabilities as arrays (outputs.StepLogprobs) instead of a dict per token.
    flat_logprobs: Annotated[bool, Parameter()] = False
    detokenize: Annotated[bool, Parameter()] = True
    skip_special_tokens: Annotated[bool, Parameter(on=TEXT)] = True
    spaces_between_special_tokens: Annotated[bool, Parameter(on=TEXT)] = True
    include_stop_str_in_output: Annotated[bool, Parameter(on=TEXT)] = False
    output_kind: Annotated[RequestOutputKind, Parameter(check=checked_output_kind)] = (
        RequestOutputKind.CUMULATIVE
    )
    stream_interval: Annotated[int | None, Parameter(least=1, on=TEXT)] = None
    logit_bias: Annotated[Mapping[int | str, float] | None, Parameter(
        json=Bias, check=checked_bias, on=TEXT
    )] = None  # fmt: skip
    allowed_token_ids: Annotated[list[int] | None, Parameter(
        json=list[TokenId], check=some_token_ids, on=TEXT
    )] = None  # fmt: skip
    skip_reading_prefix_cache: bool | None = None
    structured_outputs: Annotated[StructuredOutputsParams | None, Parameter(
        check=checked_structured
    )] = None  # fmt: skip
    # Maximum reasoning tokens, after which the end of reasoning is forced; -1 or None: no limit.
    thinking_token_budget: Annotated[int | None, Parameter(check=checked_budget, on=TEXT)] = None
    # Ends repetitive answers, with finish_reason "repetition".
    repetition_detection: Annotated[RepetitionDetectionParams | dict[str, int] | None, Parameter(
        json=dict[str, Any], check=checked_repetition_detection, on=TEXT
    )] = None  # fmt: skip
    # With enable_return_routed_experts: first prompt token whose experts are returned.
    routed_experts_prompt_start: Annotated[int, Parameter(
        least=0, most=INT32_LIMIT - 1, json=AmountOrNone, on=TEXT
    )] = 0  # fmt: skip
    # Pure JAX functions f(logits) or f(ids, logits) of one row, which run inside the step.
    logits_processors: Annotated[list[Callable[..., Any]] | None, Parameter(
        check=checked_processors
    )] = None  # fmt: skip
    # Plain data for host logits processors; "kv_transfer_params" is for the KV connector.
    extra_args: Annotated[dict[str, Any] | None, Parameter(check=plain_dict)] = None
    _checked: ClassVar[dict[str, Any] | None] = None  # values when last validated

    def __post_init__(self) -> None:
        check_all(PARAMETERS, self)
        self.top_k, self.seed = max(self.top_k, 0), None if self.seed == -1 else self.seed
        self.stop, self.bad_words = self.stop or [], self.bad_words or []
        self.stop_token_ids = self.stop_token_ids or []
        self._check_together()
        if self.is_greedy:
            self.top_p, self.top_k, self.min_p = 1.0, 0, 0.0
            if self.n != 1:
                raise RequestError(
                    f"n={self.n} with temperature=0: greedy answers are all the same. "
                    "Use n=1 or a temperature above 0."
                )
        if self.skip_reading_prefix_cache is None:
            # Cached prompt tokens have no logits, hence no log-probabilities.
            self.skip_reading_prefix_cache = self.prompt_logprobs is not None
        vars(self)["_checked"] = self._values()

    @classmethod
    def from_optional(cls, **given: Any) -> SamplingParams:
        """Construct, treating None as unset; but `max_tokens=None` means no limit."""
        return cls(**{k: v for k, v in given.items() if v is not None or k == "max_tokens"})

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def num_logprobs(self) -> int | None:
        """Log-probabilities per position besides the chosen token's; None: none."""
        if self.logprobs is None and self.logprob_token_ids:
            return len(self.logprob_token_ids)
        return self.logprobs

    @property
    def repetition(self) -> RepetitionDetectionParams | None:
        """Validated repetition detection settings."""
        given = self.repetition_detection
        return None if given is None else checked_repetition_detection("", given)

    @property
    def kv_transfer_params(self) -> dict[str, Any] | None:
        """`kv_transfer_params` of the request, from `extra_args`."""
        return (self.extra_args or {}).get(KV_TRANSFER)

    @property
    def processor_args(self) -> dict[str, Any] | None:
        """Arguments of logits processors, from `extra_args`; None if there are none."""
        own = {
            name: value for name, value in (self.extra_args or {}).items() if name != KV_TRANSFER
        }
        return own or None

    def clone(self, **changes: Any) -> SamplingParams:
        """A validated copy with some fields changed."""
        if "prompt_logprobs" in changes:
            changes.setdefault("skip_reading_prefix_cache", None)  # recomputed
        return replace(self, **changes)

    @property
    def reading(self) -> SamplingParams:
        """The parameters that apply to the output's text: these themselves."""
        return self

    def settled(self, **changes: Any) -> SamplingParams:
        """An independent copy.

        Fields are validated again only if any was set since the last validation. `changes` are set
        without validation.
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

    def _check_together(self) -> None:
        """Check parameters that depend on each other."""
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens={self.min_tokens} is above max_tokens={self.max_tokens}."
            )
        check_number_of_ids(self.logprob_token_ids, self.logprobs)
        if GREEDY_BELOW <= self.temperature < SMALLEST_TEMPERATURE:
            logger.warning("temperature=%g is raised to %g", self.temperature, SMALLEST_TEMPERATURE)
            self.temperature = SMALLEST_TEMPERATURE
        if self.stop and not self.detokenize:
            raise RequestError("stop strings need detokenize=True; use stop_token_ids instead.")
        if not isinstance(self.kv_transfer_params, (dict, type(None))):
            raise RequestError(
                f"kv_transfer_params={self.kv_transfer_params!r:.80}: expected a dict, as the "
                "engine that has the blocks has answered it."
            )


PARAMETERS = declared(SamplingParams)
ROW_PARAMETERS = tuple(given_on(PARAMETERS, Given.ROW))
# Neutral values of parameters that need a step that adjusts logits.
NEUTRAL = {name: one.default for name, one in PARAMETERS.items() if one.adjusts}


if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name

    def __getattr__(name: str) -> Any:
        raise missing_name(__name__, name, is_package=False)
