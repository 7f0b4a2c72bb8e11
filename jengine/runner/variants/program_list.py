"""Which programs an engine compiles at its start, and in which order.

In: ladders of sizes and the variants asked for. Out: keys. Must not know compilers or steps.
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
    """What these variants ask of one part, each once, in their order."""
    return tuple(dict.fromkeys(tier.of(part) for tier in tiers))


@dataclass(frozen=True)
class ChainPrograms:
    """The programs of steps that are chains: forwards by bucket, and behind them heads by slots."""

    ladders: Ladders
    tiers: tuple[Features, ...]  # cheapest first; the last one can run everything
    shapes: StepShapes
    takes_images: bool = False  # tokens of prompts may come as embeddings, that is, of images
    splits: bool = False  # the host changes logits before they are sampled from

    @cached_property
    def all(self) -> tuple[Key, ...]:
        """Every program."""
        return (*self.forwards, *self.heads, *self.multi_steps)

    @cached_property
    def forwards(self) -> tuple[StepKey, ...]:
        """The model in every bucket; where prompts run, also with embeddings of images."""
        tiers = of_part(self.tiers, Part.FORWARD)
        found = tuple(
            (bucket, tier)
            for tier in tiers
            for bucket in self.ladders.buckets()
            if not bucket.is_multi_step and is_needed(tier, bucket, tiers, self.ladders)
        )
        images = (
            (bucket, replace(tier, embeds=True))
            for bucket, tier in found
            if self.takes_images and self.shapes.prompt_tokens(bucket)
        )
        return (*found, *images)

    @cached_property
    def heads(self) -> tuple[Key, ...]:
        """What samples, scores and pools. Greedy sampling has programs for decodes alone: with
        prompts, arguments of random sampling cost nothing beside the model."""
        *decodes, most = self.shapes.slot_rungs
        of_slots = tuple(
            (Slots(count), tier)
            for part in slot_parts(self.shapes.pooling, splits=self.splits)
            for tier in of_part(self.tiers, part)
            for count in (decodes if self._is_spared(tier) else (*decodes, most))
        )
        of_prompts = dict.fromkeys(
            (Slots(self.shapes.scored_at_once), tier.of(part))
            for tier in self.tiers
            for part in prompt_parts(self.shapes.pooling, scores=tier.prompt_logprobs is not None)
            if self.shapes.prompt_tokens(self.ladders.largest)
        )
        return (*of_slots, *of_prompts)

    @cached_property
    def multi_steps(self) -> tuple[StepKey, ...]:
        """Several steps in one program, for decodes of every variant."""
        whole = ProgramList(self.ladders, of_part(self.tiers, Part.STEP))
        return tuple(key for key in whole.all if key[0].is_multi_step)

    def _is_spared(self, tier: Features) -> bool:
        """Whether the largest size runs in another variant."""
        drawn = replace(tier, sampling=replace(tier.sampling, random=True))
        return drawn != tier and drawn in of_part(self.tiers, tier.part)

    @property
    def first(self) -> tuple[Key, ...]:
        """The largest forward, and the largest head for plain sampling: the first requests run in
        them."""
        usual = [tier for tier in self.tiers if tier.is_plain and not tier.adapters]
        return self._largest((usual or self.tiers)[-1])

    @property
    def largest(self) -> tuple[Key, ...]:
        """The largest programs of the most capable variant, which can run every step."""
        return self._largest(self.tiers[-1])

    def _largest(self, tier: Features) -> tuple[Key, ...]:
        forward = self.ladders.largest, of_part(self.tiers, Part.FORWARD)[-1]
        parts = slot_parts(self.shapes.pooling, splits=self.splits)
        return (forward, *((Slots(self.shapes.slot_rungs[-1]), tier.of(part)) for part in parts))

    @property
    def later(self) -> tuple[Key, ...]:
        """The other programs, the more useful ones first: plain sampling, then what lets the
        largest forward serve every request, the model, decodes before prompts, and then what few
        requests ask for."""
        decodes = sorted({bucket.decode_rows for bucket in self.ladders.buckets()})
        ends = (decodes[0], decodes[-1])

        def order(key: Key) -> tuple[int, bool, bool, int]:
            size, tier = key
            if isinstance(size, Slots):
                usual = any(one.covers(tier) for _, one in self.first)
                needed = key in self.largest or tier.part in READS_PROMPTS
                return 0 if usual else 1 if needed else 3, False, False, size.count
            prompts = size.prefill_tokens
            few_ask = tier.adapters or tier.embeds
            return 2 + few_ask, prompts > 0, not prompts and size.decode_rows not in ends, prompts

        return tuple(key for key in sorted(self.all, key=order) if key not in self.first)


def is_needed(tier: Features, bucket: Bucket, tiers: Iterable[Features], ladders: Ladders) -> bool:
    """Whether steps ask for it. With drafts, those with prompts always run the programs that may
    have some, and so do those of more decode rows than there are requests."""
    if tier.drafts or not any(other.drafts for other in tiers):
        return True
    rungs, most = ladders.decode_rows, ladders.mixed_rows
    largest = rungs[-1] if most is None else rung("decode rows", rungs, most)
    return not bucket.prefill_tokens and bucket.decode_rows <= largest


@dataclass(frozen=True)
class ProgramList:
    """The programs of steps that are each one program. Common variants in every bucket, rare ones
    in a few: their plans are rounded up further."""

    ladders: Ladders
    tiers: tuple[Features, ...]  # cheapest first; the last one can run everything
    takes_images: bool = False  # tokens of prompts may come as embeddings, that is, of images

    @cached_property
    def all(self) -> tuple[StepKey, ...]:
        """Every program, variant by variant, and then those of prompts with images."""
        return (*self._of_text, *self._of_images)

    @property
    def _of_images(self) -> tuple[StepKey, ...]:
        """Of common variants the most capable one alone, in buckets that run prompts."""
        kept = (self.common[-1], *(tier for tier in self.tiers if tier not in self.common))
        return tuple(
            (bucket, replace(tier, embeds=True))
            for bucket, tier in self._of_text
            if self.takes_images and tier in kept and bucket.prefill_tokens
        )

    @cached_property
    def _of_text(self) -> tuple[StepKey, ...]:
        return tuple(
            (bucket, tier)
            for tier in self.tiers
            for bucket in (
                self.ladders.buckets() if tier in self.common else self.ladders.rare_buckets()
            )
            if self._scores_prompts(tier, bucket.prefill_tokens)
            and is_needed(tier, bucket, self.tiers, self.ladders)
        )

    @cached_property
    def common(self) -> tuple[Features, ...]:
        """The variants that most steps need: plain sampling, or the cheapest if none is plain.
        Where padding costs as much as tokens, also adjusted logits, as grammars have, if they are
        asked for."""
        adjusting = not self.ladders.full_step
        usual = [one for one in self.tiers if one.is_plain or (adjusting and one.gives_tokens_only)]
        return tuple(usual or self.tiers[:1])

    @property
    def first(self) -> tuple[StepKey, ...]:
        """The largest program, which can run every step; the cache is sized with it."""
        return ((self.ladders.largest, self.tiers[-1]),)

    largest = first

    @property
    def later(self) -> tuple[StepKey, ...]:
        """The other programs, the more useful ones first.

        First every bucket in the most capable common variant, since running a small step in a large
        program wastes most; then the cheaper common variants, then the rare ones. Decode buckets
        come before those with prefill, and of these first the smallest, for a single request, and
        the largest, which can replace all others.
        """
        decodes = sorted({bucket.decode_rows for bucket in self.ladders.buckets()})
        ends = (decodes[0], decodes[-1])

        def order(key: StepKey) -> tuple[int, bool, bool, int]:
            bucket, tier = key
            kind = 0 if tier == self.common[-1] else 1 if tier in self.common else 2
            prompts = bucket.prefill_tokens
            return kind, prompts > 0, not prompts and bucket.decode_rows not in ends, prompts

        return tuple(key for key in sorted(self.all, key=order) if key not in self.first)

    def _scores_prompts(self, tier: Features, prefill_tokens: int) -> bool:
        """Whether a program is needed: without prompt tokens, scoring prompts changes nothing."""
        unscored = replace(tier, prompt_logprobs=None) in self.tiers
        return tier.prompt_logprobs is None or bool(prefill_tokens) or not unscored
