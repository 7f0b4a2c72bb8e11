"""Beam search parameters, sequences and outputs, with vLLM's names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jengine.sampling_checks import MAX_N, boolean, integer, number
from jengine.sampling_names import refuses_unknown_names
from jengine.structured_outputs import StructuredOutputsParams, checked_structured

if TYPE_CHECKING:  # imports numpy, which help texts avoid
    from jengine.logprobs import Table


@refuses_unknown_names
@dataclass
class BeamSearchParams:
    """Settings of a beam search. Invalid values raise RequestError (a ValueError)."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0  # raw log-probabilities are ranked, so it can only affect ties
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False  # over HTTP only; LLM always includes the EOS
    structured_outputs: StructuredOutputsParams | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        self.beam_width = integer("beam_width", self.beam_width, 1, MAX_N)
        self.max_tokens = integer("max_tokens", self.max_tokens, 1)
        self.temperature = number("temperature", self.temperature, 0, 2)
        self.length_penalty = number("length_penalty", self.length_penalty, -1e6, 1e6)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            boolean(name, vars(self)[name])
        if self.structured_outputs is not None:
            checked_structured("structured_outputs", self.structured_outputs)

    @property
    def candidates(self) -> int:
        """Number of continuations considered per beam and step."""
        return 2 * self.beam_width


@dataclass
class BeamSearchSequence:
    """One beam. `tokens` and `text` begin with the prompt; `logprobs` has an item per new token."""

    tokens: list[int]
    logprobs: Sequence[Table]
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None  # "abort" or "error" if the search ended early
    stop_reason: int | str | None = None
    orig_prompt: Any = None
    lora_request: None = None


@dataclass
class BeamSearchOutput:
    """A prompt's best sequences, best first, at most `beam_width`."""

    sequences: list[BeamSearchSequence] = field(default_factory=list)
