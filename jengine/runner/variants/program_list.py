"""Which programs an engine compiles at its start, and in which order.

In: ladders of sizes and the variants asked for. Out: keys. Must not know compilers or steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from jengine.runner.variants.buckets import Bucket, Ladders, rung
from jengine.runner.variants.features import Features

Key = tuple[Bucket, Features]  # names a program


@dataclass(frozen=True)
class ProgramList:
    """Common variants in every bucket, rare ones in a few: their plans are rounded up further."""

    ladders: Ladders
    tiers: tuple[Features, ...]  # cheapest first; the last one can run everything
    one_segment: bool = False  # every bucket runs prompt tokens
    takes_images: bool = False  # tokens of prompts may come as embeddings, that is, of images

    @cached_property
    def all(self) -> tuple[Key, ...]:
        """Every program, variant by variant, and then those of prompts with images."""
        return (*self._of_text, *self._of_images)

    @property
    def _of_images(self) -> tuple[Key, ...]:
        """Of common variants the most capable one alone, in buckets that run prompts."""
        kept = (self.common[-1], *(tier for tier in self.tiers if tier not in self.common))
        return tuple(
            (bucket, replace(tier, embeds=True))
            for bucket, tier in self._of_text
            if self.takes_images and tier in kept and (bucket.prefill_tokens or self.one_segment)
        )

    @cached_property
    def _of_text(self) -> tuple[Key, ...]:
        return tuple(
            (bucket, tier)
            for tier in self.tiers
            for bucket in (
                self.ladders.buckets() if tier in self.common else self.ladders.rare_buckets()
            )
            if self._scores_prompts(tier, bucket.prefill_tokens) and self._is_needed(tier, bucket)
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
    def first(self) -> tuple[Key, ...]:
        """The largest program, which can run every step; the cache is sized with it."""
        return ((self.ladders.largest, self.tiers[-1]),)

    @property
    def later(self) -> tuple[Key, ...]:
        """The other programs, the more useful ones first.

        First every bucket in the most capable common variant, since running a small step in a large
        program wastes most; then the cheaper common variants, then the rare ones. Decode buckets
        come before those with prefill, and of these first the smallest, for a single request, and
        the largest, which can replace all others.
        """
        decodes = sorted({bucket.decode_rows for bucket in self.ladders.buckets()})
        ends = (decodes[0], decodes[-1])

        def order(key: Key) -> tuple[int, bool, bool, int]:
            bucket, tier = key
            kind = 0 if tier == self.common[-1] else 1 if tier in self.common else 2
            prompts = bucket.prefill_tokens
            return kind, prompts > 0, not prompts and bucket.decode_rows not in ends, prompts

        return tuple(key for key in sorted(self.all, key=order) if key not in self.first)

    def _is_needed(self, tier: Features, bucket: Bucket) -> bool:
        """Whether steps ask for it. With drafts, those with prompts always run the programs that
        may have some, and so do those of more decode rows than there are requests."""
        if tier.drafts or not any(other.drafts for other in self.tiers):
            return True
        rungs, most = self.ladders.decode_rows, self.ladders.mixed_rows
        largest = rungs[-1] if most is None else rung("decode rows", rungs, most)
        return not bucket.prefill_tokens and bucket.decode_rows <= largest

    def _scores_prompts(self, tier: Features, prefill_tokens: int) -> bool:
        """Whether a program is needed: without prompt tokens, scoring prompts changes nothing."""
        unscored = replace(tier, prompt_logprobs=None) in self.tiers
        runs_prompts = bool(prefill_tokens) or self.one_segment
        return tier.prompt_logprobs is None or runs_prompts or not unscored
