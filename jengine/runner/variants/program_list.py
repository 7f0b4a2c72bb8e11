"""The programs that an engine compiles at its start, and their order.

In: ladders of sizes and the configured variants. Out: keys. Must not know compilers or steps.

Variants are ordered: each covers the cheaper ones, so any mix of requests finds a program. A GPU
engine compiles 21 forwards and 16 heads, a CPU engine 7 and 12. Penalties and log-probabilities are
separate variants, so one penalised request does not make the batch compute log-probabilities. Where
one program runs the model and samples, rare variants have fewer buckets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from jengine.runner.variants.buckets import Bucket, Ladders, Slots, StepShapes, rung
from jengine.runner.variants.features import Features
from jengine.runner.variants.parts import READS_PROMPTS, Part, prompt_parts, slot_parts

Key = tuple[Bucket | Slots, Features]  # names a program
StepKey = tuple[Bucket, Features]  # and one that runs the tokens of a step


def of_part(tiers: Iterable[Features], part: Part) -> tuple[Features, ...]:
    """Distinct restrictions of these variants to one part, in order."""
    return tuple(dict.fromkeys(tier.of(part) for tier in tiers))


@dataclass(frozen=True)
class ProgramList:
    """All programs to compile: forwards by bucket, and heads by sampling slots."""

    ladders: Ladders
    tiers: tuple[Features, ...]  # cheapest first; the last one can run everything
    shapes: StepShapes
    takes_images: bool = False  # compile forwards with image embeddings too
    splits: bool = False  # logits processors run on the host between logits and sampling

    @cached_property
    def all(self) -> tuple[Key, ...]:
        return (*self.models, *self.next_drafts, *self.heads)

    @cached_property
    def models(self) -> tuple[StepKey, ...]:
        """Forward programs: every bucket, and coarser buckets for rare variants where the forward
        also samples; where prompts run, also with image embeddings."""
        found = tuple(
            (bucket, tier)
            for part in (Part.FORWARD, Part.STEP)
            for tier in of_part(self.tiers, part)
            for bucket in self._buckets(tier)
            if part is self._main(bucket)
            and is_needed(tier, bucket, of_part(self.tiers, part), self.ladders)
        )
        images = (
            (bucket, replace(tier, embeds=True))
            for bucket, tier in found
            if self.takes_images and self.shapes.prompt_tokens(bucket)
        )
        return (*found, *images)

    def _main(self, bucket: Bucket) -> Part:
        return Part.FORWARD if self.shapes.is_chained(bucket) else Part.STEP

    def _buckets(self, tier: Features) -> Iterable[Bucket]:
        """Buckets of a variant; rare ones have fewer, coarser buckets."""
        is_usual = tier.is_plain or not any(one.is_plain for one in self.tiers)
        return self.ladders.buckets() if is_usual else self.ladders.rare_buckets()

    @cached_property
    def next_drafts(self) -> tuple[StepKey, ...]:
        """Draft programs, one per bucket whose tokens they read."""
        if not self.shapes.makes_drafts:
            return ()
        read = dict.fromkeys(bucket for bucket, tier in self.models if tier.drafts)
        return tuple((bucket, tier) for tier in of_part(self.tiers, Part.DRAFT) for bucket in read)

    @cached_property
    def heads(self) -> tuple[Key, ...]:
        """Sampling, scoring and pooling programs. Greedy sampling only for pure decode sizes: with
        prefill, random sampling costs nothing beside the model."""
        *decodes, most = self.shapes.slot_rungs
        of_slots = tuple(
            (Slots(count), tier)
            for part in slot_parts(self.shapes.pooling, splits=self.splits)
            for tier in of_part(self.tiers, part)
            for count in (decodes if self._is_served_by_random(tier) else (*decodes, most))
            if self.shapes.chained
        )
        of_prompts = dict.fromkeys(
            (Slots(self.shapes.scored_at_once), tier.of(part))
            for tier in self.tiers
            for part in prompt_parts(self.shapes.pooling, scores=tier.prompt_logprobs is not None)
            if self.shapes.prompt_tokens(self.ladders.largest)
        )
        return (*of_slots, *of_prompts)

    def _is_served_by_random(self, tier: Features) -> bool:
        """Whether the same variant with random sampling serves the largest size."""
        drawn = replace(tier, sampling=replace(tier.sampling, random=True))
        return drawn != tier and drawn in of_part(self.tiers, tier.part)

    @property
    def first(self) -> tuple[Key, ...]:
        """The largest forward and the heads for plain sampling: the first requests run in them."""
        usual = [tier for tier in self.tiers if tier.is_plain and not tier.adapters]
        return self._largest((usual if usual and self.shapes.chained else self.tiers)[-1])

    @property
    def largest(self) -> tuple[Key, ...]:
        """The largest programs of the most capable variant, which can run every step."""
        return self._largest(self.tiers[-1])

    def _largest(self, tier: Features) -> tuple[Key, ...]:
        bucket, slots = self.ladders.largest, Slots(self.shapes.slot_rungs[-1])
        model = bucket, of_part(self.tiers, self._main(bucket))[-1]
        next_drafts = [(bucket, tier.of(Part.DRAFT))] if self.shapes.makes_drafts else []
        parts = slot_parts(self.shapes.pooling, splits=self.splits) if self.shapes.chained else ()
        return (model, *next_drafts, *((slots, tier.of(part)) for part in parts))

    @property
    def later(self) -> tuple[Key, ...]:
        """The rest in order of use: plain sampling, heads that let the largest forward serve every
        request, forwards (decode before prefill), rare features."""
        decodes = sorted({bucket.decode_rows for bucket in self.ladders.buckets()})
        ends = (decodes[0], decodes[-1])

        def order(key: Key) -> tuple[int, bool, bool, int]:
            size, tier = key
            if isinstance(size, Slots):
                usual = any(one.covers(tier) for _, one in self.first)
                needed = key in self.largest or tier.part in READS_PROMPTS
                return 0 if usual else 1 if needed else 3, False, False, size.count
            prompts = size.prefill_tokens
            few_ask = tier.adapters or tier.embeds or not tier.is_plain
            return 2 + few_ask, prompts > 0, not prompts and size.decode_rows not in ends, prompts

        return tuple(key for key in sorted(self.all, key=order) if key not in self.first)


def is_needed(tier: Features, bucket: Bucket, tiers: Iterable[Features], ladders: Ladders) -> bool:
    """Whether any step selects this program. With drafts, steps with prefill, or with more decode
    rows than requests, always use the variant with draft support."""
    if tier.drafts or not any(other.drafts for other in tiers):
        return True
    rungs, most = ladders.decode_rows, ladders.mixed_rows
    largest = rungs[-1] if most is None else rung("decode rows", rungs, most)
    return not bucket.prefill_tokens and bucket.decode_rows <= largest
