"""Sampler features of a step; selects a compiled variant.

In: features used by the rows of a plan. Out: SamplingFeatures, a static argument of the step. Must
not know jax: the host half of the runner builds it too.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from jengine.sampling.processor_sets import ProcessorSet

LogprobsMode = Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"]


@dataclass(frozen=True)
class SamplingFeatures:
    """With every feature off the sampler is an argmax. `logprobs`: None = off, 0 = sampled token
    only, K = also the top K."""

    random: bool = False  # temperature, min-p, top-k and top-p
    adjust: bool = False  # penalties, bias, bad words, allowed ids, min_tokens
    logprobs: int | None = None
    # Rows may name the token ids to score instead of the top K: needs `adjust` and `logprobs`.
    own_ids: bool = False
    logprobs_mode: LogprobsMode = "raw_logprobs"
    processors: tuple[ProcessorSet, ...] = ()  # functions that change logits; they need `adjust`

    @property
    def reads_logits(self) -> bool:
        """Whether the sampler does more than an argmax."""
        return self.random or self.adjust or self.logprobs is not None

    def __post_init__(self) -> None:
        if self.logprobs is not None and self.logprobs < 0:
            raise ValueError(
                f"logprobs={self.logprobs}, expected None or at least 0; "
                "for the whole vocabulary give its size"
            )
        if self.logprobs_mode not in get_args(LogprobsMode):
            raise ValueError(
                f"logprobs_mode={self.logprobs_mode!r}, expected one of {get_args(LogprobsMode)}"
            )
