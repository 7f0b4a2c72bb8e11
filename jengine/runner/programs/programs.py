"""The compiled steps of a replica, and which of them runs a plan.

A program that is missing after warm-up is compiled with a warning or, in strict mode, an error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from jengine.errors import UnexpectedCompile
from jengine.runner.programs.compiler import Compiled, StepCompiler
from jengine.runner.programs.ledger import CompileLedger, LedgerEntry
from jengine.runner.variants.buckets import Bucket
from jengine.runner.variants.features import Features
from jengine.runner.variants.program_list import Key
from jengine.runner.variants.tap_sets import TapSet

logger = logging.getLogger(__name__)


class Programs:
    """The compiled steps of one replica, by bucket and features. Replicas share a ledger."""

    def __init__(
        self,
        compiler: StepCompiler,
        tiers: list[Features],
        ledger: CompileLedger,
        *,
        strict: bool,
        planned: Sequence[Key] = (),
    ) -> None:
        self.compiler = compiler
        self.tiers = tiers
        self.strict = strict
        self.ledger = ledger
        # What the engine compiles at its start, or on first use if it compiles nothing then. Any
        # other program is compiled when a step needs it, for the step's bucket.
        self._planned = tuple(planned)
        self._smallest: dict[
            Key, Key | None
        ] = {}  # bucket and features of a step -> planned program
        self._compiled: dict[Key, Compiled] = {}
        # To be compiled in the background; larger programs run their steps meanwhile.
        self._later: set[Key] = set()
        self._warm = False

    def keep(self, compiled: Compiled, entry: LedgerEntry) -> None:
        """Add a program that was compiled while sizing or in the background."""
        key = (entry.bucket, entry.features)
        self.ledger.add(entry)  # first, since `find` reads the entry of every compiled program
        self._compiled[key] = compiled
        self._later.discard(key)

    def expect_later(self, keys: Iterable[Key]) -> None:
        """Let larger programs run the steps of these until they are compiled."""
        self._later.update(self.missing(keys))
        self.ledger.expect(self._later)

    def bucket_for(self, bucket: Bucket, needed: Features) -> Bucket:
        """The bucket in which a step of this size runs now.

        It is that of the smallest planned program that covers the step, since rare variants have
        fewer buckets; while that program is not compiled, of the smallest compiled one.
        """
        if needed.is_rare:  # no planned program is
            return bucket
        asked = (bucket, needed)
        if asked not in self._smallest:
            self._smallest[asked] = self._smallest_of(self._planned, *asked)
        wanted = self._smallest[asked]
        if wanted is None:
            return bucket
        if wanted in self._later:
            self.ledger.note_asked(wanted)
            wanted = self._smallest_of(list(self._compiled), *asked) or wanted
        return wanted[0]

    def _smallest_of(self, keys: Sequence[Key], bucket: Bucket, needed: Features) -> Key | None:
        """The program among these that runs such a step with the least padding."""
        able = [key for key in keys if key[0].covers(bucket) and key[1].covers(needed)]

        def size(key: Key) -> tuple[int, int, int]:
            tier = replace(key[1], embeds=False)
            return key[0].num_tokens, key[0].pages, self.tiers.index(tier)

        return min(able, key=size, default=None)

    def missing(self, wanted: Iterable[Key]) -> list[Key]:
        """Those that are not compiled yet."""
        return [key for key in wanted if key not in self._compiled]

    def compiled_by(self, compiler: StepCompiler) -> dict[Key, tuple[Compiled, LedgerEntry]]:
        """The programs that there are, compiled anew for other shapes."""
        return {key: compiler.compile(*key) for key in self._compiled}

    def use(
        self, compiler: StepCompiler, programs: dict[Key, tuple[Compiled, LedgerEntry]]
    ) -> None:
        """Have these in place of all programs."""
        self.compiler = compiler
        self._compiled.clear()
        for program in programs.values():
            self.keep(*program)

    def end_warm_up(self) -> None:
        """Treat programs that are compiled from now on as late: a step waits for them."""
        self._warm = True

    def find(self, bucket: Bucket, needed: Features) -> tuple[Compiled, LedgerEntry]:
        """The cheapest compiled program that can run this step; if none can, it is compiled now."""
        tiers = self.tiers
        if needed.is_rare or needed.embeds:  # no tier has either
            tiers = [tier.with_rare_of(needed) for tier in tiers]
        for tier in tiers:
            if tier.covers(needed) and (bucket, tier) in self._compiled:
                return self._compiled[bucket, tier], self.ledger.entries[bucket, tier]
        features = next((tier for tier in tiers if tier.covers(needed)), needed)
        self._late(bucket, features)
        return self._compiled[bucket, features], self.ledger.entries[bucket, features]

    def expect(self, bucket: Bucket, needed: Features) -> None:
        """Raise now what strict mode would raise after the plan was queued."""
        if self.strict:
            self.find(self.bucket_for(bucket, needed), needed)

    def forget(self, taps: TapSet) -> None:
        """Drop the programs of a tap set that will not be used again."""
        for bucket, features in [key for key in list(self._compiled) if taps in key[1].taps]:
            del self._compiled[bucket, features]
            self.ledger.entries.pop((bucket, features), None)  # shared with other replicas

    def _late(self, bucket: Bucket, features: Features) -> None:
        if self.strict and self._warm:
            raise UnexpectedCompile(
                f"strict mode: step {bucket} with features {features} was not compiled in warm-up. "
                "Add its variant to compilation_config['variants'], or use strict=False, which "
                "capture, intervene, prompt_embeds and logprob_token_ids always need."
            )
        if self._warm:  # said before, as a large model's program takes a minute
            logger.warning(
                "a step waits for its program, %s with features %s, which is compiled now: warm-up "
                "left it out; compilation_config['variants'] says what is compiled at the start",
                bucket, features,
            )  # fmt: skip
        self.ledger.awaited += 1
        try:
            compiled, entry = self.compiler.compile(bucket, features)
        finally:
            self.ledger.awaited -= 1
        if self._warm:
            entry.after_warm_up = True
            logger.info("compiled in %.2f s", entry.seconds)
        self.keep(compiled, entry)
