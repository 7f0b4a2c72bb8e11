"""Which programs an engine compiles at its start, and in which order.

In: ladders of sizes and the variants asked for. Out: keys. Must not know compilers or steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from jengine.runner.variants.buckets import Bucket, Ladders
from jengine.runner.variants.features import Features

Key = tuple[Bucket, Features]  # names a program


@dataclass(frozen=True)
class ProgramList:
    """Common variants in every bucket, rare ones in a few; a rare plan is rounded up to those."""

    ladders: Ladders
    tiers: tuple[Features, ...]  # cheapest first; the last one can run everything
    one_segment: bool = False  # every bucket runs prompt tokens

    @cached_property
    def all(self) -> tuple[Key, ...]:
        """Every program, variant by variant."""
        return tuple(
            (bucket, tier)
            for tier in self.tiers
            for bucket in (
                self.ladders.buckets() if tier in self.common else self.ladders.rare_buckets()
            )
            if self._scores_prompts(tier, bucket.prefill_tokens)
        )

    @cached_property
    def common(self) -> tuple[Features, ...]:
        """The variants that most steps need: sampling without adjusted logits or
        log-probabilities, or whatever was asked for instead."""
        plain = [tier for tier in self.tiers if tier.is_plain]
        return tuple(plain or self.tiers[:1])

    @property
    def first(self) -> tuple[Key, ...]:
        """The program that can run every step, which sizes the cache."""
        return ((self.ladders.largest, self.tiers[-1]),)

    @property
    def later(self) -> tuple[Key, ...]:
        """The other programs, the more useful ones first.

        Every size in the common variant that covers the others, since a small step in a large
        program is what costs most; then the cheaper variants, then the rare ones. Sizes without
        prompts first, of which every answer needs many, and of these the smallest, that a single
        request runs in, and the largest, that can stand in for all others.
        """
        decodes = sorted({bucket.decode_rows for bucket in self.ladders.buckets()})
        ends = (decodes[0], decodes[-1])

        def order(key: Key) -> tuple[int, bool, bool, int]:
            bucket, tier = key
            kind = 0 if tier == self.common[-1] else 1 if tier in self.common else 2
            prompts = bucket.prefill_tokens
            return kind, prompts > 0, not prompts and bucket.decode_rows not in ends, prompts

        return tuple(key for key in sorted(self.all, key=order) if key not in self.first)

    def _scores_prompts(self, tier: Features, prefill_tokens: int) -> bool:
        """Whether a variant that scores prompts differs in this bucket from one that does not."""
        unscored = any(
            other.sampling == tier.sampling and other.prompt_logprobs is None
            for other in self.tiers
        )
        runs_prompts = bool(prefill_tokens) or self.one_segment
        return tier.prompt_logprobs is None or runs_prompts or not unscored
