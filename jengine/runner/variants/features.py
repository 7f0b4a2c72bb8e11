"""Features: what a step computes besides the model. A hashable value that picks a variant.

A plan's features are rounded up to one of a few variants, as its size is rounded up to a bucket.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from jengine.runner.variants.tap_sets import TapSet
from jengine.sampling.features import LogprobsMode, SamplingFeatures
from jengine.sampling.processor_sets import ProcessorSet


@dataclass(frozen=True)
class Features:
    """The sampler's features, prompt log-probabilities per token (None: none), and taps."""

    sampling: SamplingFeatures = field(default_factory=SamplingFeatures)
    prompt_logprobs: int | None = None
    taps: tuple[TapSet, ...] = ()

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads that run on the step's hidden states (see `step/heads.py`)."""
        return ("sampled",) if self.prompt_logprobs is None else ("sampled", "prompt_logprobs")

    @property
    def own_functions(self) -> tuple[TapSet | ProcessorSet, ...]:
        """Functions of the caller's. A step with any is compiled when it is first needed."""
        return (*self.taps, *self.sampling.processors)

    def with_functions_of(self, other: Features) -> Features:
        """These features, with the functions of others."""
        sampling = replace(self.sampling, processors=other.sampling.processors)
        return replace(self, sampling=sampling, taps=other.taps)

    def covers(self, other: Features) -> bool:
        """Whether a step with these features can run a plan that needs `other`."""
        mine, theirs = self.sampling, other.sampling
        return (
            mine.random >= theirs.random
            and mine.adjust >= theirs.adjust
            and holds(mine.logprobs, theirs.logprobs)
            and holds(self.prompt_logprobs, other.prompt_logprobs)
            and self.own_functions == other.own_functions
        )

    @property
    def is_plain(self) -> bool:
        """Whether steps sample without adjusted logits, log-probabilities and taps."""
        sampling = self.sampling
        extra = (sampling.logprobs, self.prompt_logprobs)
        return not sampling.adjust and extra == (None, None) and not self.taps

    def __str__(self) -> str:
        parts = {
            "random": self.sampling.random,
            "adjust": self.sampling.adjust,
            f"logprobs={self.sampling.logprobs}": self.sampling.logprobs is not None,
            f"prompt_logprobs={self.prompt_logprobs}": self.prompt_logprobs is not None,
            **{str(one): True for one in self.own_functions},
        }
        return "+".join(name for name, used in parts.items() if used) or "greedy"


def holds(have: int | None, want: int | None) -> bool:
    """Whether `have` log-probabilities per token include `want`."""
    return want is None or (have is not None and have >= want)


def variants(max_logprobs: int, mode: LogprobsMode) -> dict[str, Features]:
    """The variants an engine may compile, cheapest first; each covers the ones before it."""
    greedy = Features(SamplingFeatures(logprobs_mode=mode))
    sampled = Features(replace(greedy.sampling, random=True))
    adjusted = Features(replace(sampled.sampling, adjust=True))
    full = Features(replace(adjusted.sampling, logprobs=max_logprobs))
    return {
        "greedy": greedy,
        "sampled": sampled,
        "adjusted": adjusted,
        "full": full,
        "scored": Features(full.sampling, prompt_logprobs=max_logprobs),
    }
