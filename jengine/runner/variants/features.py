"""Features: what a step computes besides the model. Hashable; selects a compiled variant.

A plan's features are rounded up to one of a few variants, as its size is rounded up to a bucket.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from jengine.runner.variants.parts import FEATURES_OF, IN_WORDS, RUNS_TOKENS, Part
from jengine.runner.variants.tap_sets import TapSet
from jengine.sampling.features import LogprobsMode, SamplingFeatures
from jengine.sampling.processor_sets import ProcessorSet

# Variant with log-probabilities of prompts and of greedy completions: its sampler compiles in a
# third of the time of the full one. Only for engines whose configuration names it.
GREEDY_SCORED = "greedy-scored"


@dataclass(frozen=True)
class Features:
    """Sampler features, prompt log-probabilities per token (None: none), taps, and whether rows may
    have LoRA adapters, draft tokens or given embeddings."""

    sampling: SamplingFeatures = field(default_factory=SamplingFeatures)
    prompt_logprobs: int | None = None
    taps: tuple[TapSet, ...] = ()
    adapters: bool = False
    drafts: bool = False  # decode rows may be drafts, and the device's drafter runs after the step
    embeds: bool = False  # some tokens are given as embeddings
    # Whether the engine's adapters may change the output head. If not, head programs serve rows
    # with and without adapters alike.
    adapts_head: bool = True
    part: Part = Part.STEP

    def of(self, part: Part) -> Features:
        """Restrict to the features that this part of the step depends on."""
        kept = {name: getattr(self, name) for name in FEATURES_OF[part]}
        if "adapters" in kept and part not in RUNS_TOKENS and not self.adapts_head:
            kept |= {"adapters": False, "adapts_head": False}
        found = Features(part=part, **kept)
        if part is not Part.DRAFT:
            return found
        return replace(found, sampling=SamplingFeatures(random=self.sampling.random))

    @property
    def own_functions(self) -> tuple[TapSet | ProcessorSet, ...]:
        """User callbacks. A step with any is compiled when first needed."""
        return (*self.taps, *self.sampling.processors)

    def with_rare_of(self, other: Features) -> Features:
        """Add the rare features of `other`: callbacks, token ids to score, given embeddings."""
        rare = other.sampling
        own_ids = rare.own_ids or self.sampling.own_ids
        sampling = replace(self.sampling, processors=rare.processors, own_ids=own_ids)
        return replace(self, sampling=sampling, taps=other.taps, embeds=other.embeds)

    def covers(self, other: Features) -> bool:
        """Whether a step with these features can run a plan that needs `other`."""
        mine, theirs = self.sampling, other.sampling
        return (
            self.part == other.part
            and mine.random >= theirs.random
            and mine.adjust >= theirs.adjust
            and holds(mine.logprobs, theirs.logprobs)
            and holds(self.prompt_logprobs, other.prompt_logprobs)
            and self._serves_adapters >= other.adapters
            and self.drafts >= other.drafts
            and mine.own_ids >= theirs.own_ids
            and set(self.own_functions) >= set(other.own_functions)
            and self.embeds == other.embeds
        )

    @property
    def _serves_adapters(self) -> bool:
        """Whether rows with adapters may run it."""
        is_left_alone = self.part not in RUNS_TOKENS and not self.adapts_head
        return self.adapters or is_left_alone

    @property
    def is_plain(self) -> bool:
        """Whether sampling needs no adjusted logits, log-probabilities or taps."""
        extra = (self.sampling.logprobs, self.prompt_logprobs)
        return extra == (None, None) and not (self.taps or self.sampling.adjust)

    @property
    def in_words(self) -> str:
        """Description for progress and error messages."""
        asked = {
            "drawn tokens": self.sampling.random,
            "changed logits": self.sampling.adjust,
            "log-probabilities": self.sampling.logprobs is not None,
            "drafts": self.drafts,
            "adapters": self.adapters,
            "captured or changed values": bool(self.taps),
            "logits processors": bool(self.sampling.processors),
            "embeddings in prompts": self.embeds,
        }
        wanted = ", ".join(name for name, used in asked.items() if used)
        return f"{IN_WORDS[self.part]} for {wanted}" if wanted else IN_WORDS[self.part]

    def __str__(self) -> str:
        parts = {
            "random": self.sampling.random,
            "adjust": self.sampling.adjust,
            f"logprobs={self.sampling.logprobs}": self.sampling.logprobs is not None,
            "own_ids": self.sampling.own_ids,
            f"prompt_logprobs={self.prompt_logprobs}": self.prompt_logprobs is not None,
            "drafts": self.drafts,
            "adapters": self.adapters,
            **{str(one): True for one in self.own_functions},
            "embeds": self.embeds,
        }
        names = "+".join(name for name, used in parts.items() if used)
        if "sampling" in FEATURES_OF[self.part]:
            names = names or "greedy"
        return names if self.part is Part.STEP else f"{self.part.value} {names}".rstrip()


def holds(have: int | None, want: int | None) -> bool:
    """Whether `have` log-probabilities per token include the `want` requested."""
    return want is None or (have is not None and have >= want)


def with_adapters(name: str) -> str:
    """Name of the variant with LoRA support."""
    return f"{name}+adapters"


def with_drafts(name: str) -> str:
    """Name of the variant with draft support."""
    return f"{name}+drafts"


def variants(
    max_logprobs: int,
    mode: LogprobsMode,
    *,
    adapters: bool = False,
    adapts_head: bool = True,
    drafts: bool = False,
    own_ids: bool = False,
    greedy_scored: bool = False,
) -> dict[str, Features]:
    """The variants an engine may compile, cheapest first; the last covers all others.

    Each covers those before it. With `adapters` each exists twice, so that batches without adapters
    do not pay for them (`adapts_head`: in the output head too). With `drafts` the common ones exist
    twice, with and without; the others always support drafts. With `own_ids`, variants with
    log-probabilities also score ids that rows name.
    `greedy_scored`: among them is the variant of this name, which covers "greedy" alone.
    """
    known = plain_variants(max_logprobs, mode, own_ids=own_ids)
    if not greedy_scored:
        del known[GREEDY_SCORED]
    if drafts:
        known = {
            name: features
            for own, value in known.items()
            for name, features in (
                *([(own, value)] if value.is_plain else []),
                (with_drafts(own) if value.is_plain else own, replace(value, drafts=True)),
            )
        }
    if not adapters:
        return known
    known = {name: replace(value, adapts_head=adapts_head) for name, value in known.items()}
    return {
        name: features
        for own, value in known.items()
        for name, features in ((own, value), (with_adapters(own), replace(value, adapters=True)))
    }


def plain_variants(
    max_logprobs: int, mode: LogprobsMode, *, own_ids: bool = False
) -> dict[str, Features]:
    """The variants without adapters."""
    greedy = Features(SamplingFeatures(logprobs_mode=mode))
    scores = replace(greedy.sampling, logprobs=max_logprobs)
    sampled = Features(replace(greedy.sampling, random=True))
    adjusted = Features(replace(sampled.sampling, adjust=True))
    full = Features(replace(adjusted.sampling, logprobs=max_logprobs, own_ids=own_ids))
    return {
        "greedy": greedy,
        GREEDY_SCORED: Features(scores, prompt_logprobs=max_logprobs),
        "sampled": sampled,
        "adjusted": adjusted,
        "full": full,
        "scored": Features(full.sampling, prompt_logprobs=max_logprobs),
    }
