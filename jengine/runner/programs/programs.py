"""A replica's compiled programs, and their choice for a plan.

After warm-up, a step that lacks a program compiles it with a warning; in strict mode it raises.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from jengine.errors import UnexpectedCompile
from jengine.runner.programs.compiler import Compiled, StepCompiler
from jengine.runner.programs.ledger import CompileLedger, LedgerEntry
from jengine.runner.step.leaves import Leaves
from jengine.runner.step.part_functions import called
from jengine.runner.step.state import StepState
from jengine.runner.variants.buckets import NO_TOKENS, Bucket, Slots
from jengine.runner.variants.features import Features
from jengine.runner.variants.parts import BY_BUCKET, Part, prompt_parts, slot_parts
from jengine.runner.variants.program_list import Key, StepKey, of_part
from jengine.runner.variants.tap_sets import TapSet

logger = logging.getLogger(__name__)


class LateCompiler(Protocol):
    """Compiles programs asynchronously, while steps run."""

    def ask(self, keys: Iterable[Key]) -> None:
        """Queue these programs for compilation; does not block."""
        ...


class Found(NamedTuple):
    """A compiled program and its ledger entry."""

    program: Compiled
    entry: LedgerEntry

    def queue(self, leaves: Leaves, state: StepState, given: Any) -> tuple[StepState, Any]:
        """Dispatch the program. Returns the new state and the results."""
        self.entry.executions += 1
        return called(self.program, self.entry.features, leaves, state, given)


class Chain(NamedTuple):
    """The programs of one step, in execution order."""

    bucket: Bucket
    parts: dict[Part, Found]

    def has_run(self, times: int) -> bool:
        """Whether each program has run at least `times` times."""
        return all(found.entry.executions >= times for found in self.parts.values())


class Programs:
    """Compiled programs of one replica, by bucket and features. Replicas share a ledger."""

    def __init__(
        self,
        compiler: StepCompiler,
        tiers: list[Features],
        ledger: CompileLedger,
        *,
        strict: bool,
        planned: Sequence[Key] = (),
        largest: Bucket | None = None,
    ) -> None:
        self.compiler = compiler
        self.tiers = tiers
        self._tiers_of = {part: of_part(tiers, part) for part in Part}
        self.strict = strict
        self.ledger = ledger
        # Compiled at the start, or on first use without warm-up. Other programs are compiled when a
        # step needs them, for the step's bucket.
        self._planned = tuple(planned)
        # Bucket and features of a step -> the planned program that runs it.
        self._smallest: dict[StepKey, StepKey | None] = {}
        self._compiled: dict[Key, Compiled] = {}
        # To be compiled in the background; steps run in larger programs until then.
        self._later: set[Key] = set()
        self._warm = False
        self._largest = largest or NO_TOKENS  # the bucket that every step fits in
        self.late: LateCompiler | None = None
        # Called, in any thread, when a program is compiled or a background compile has failed.
        self.tell: Callable[[], object] = lambda: None
        # Memo: size and features of a step -> its programs, while none is pending.
        self._chains: dict[tuple[Bucket, Features], Chain] = {}

    def keep(self, compiled: Compiled, entry: LedgerEntry) -> None:
        key = (entry.bucket, entry.features)
        self.ledger.add(entry)  # first, since `find` reads the entry of every compiled program
        self._compiled[key] = compiled
        self._chains.clear()  # they were chosen without this program
        self._later.discard(key)
        self.tell()

    def expect_later(self, keys: Iterable[Key]) -> None:
        """Register programs as pending: steps run in larger ones until they are compiled."""
        self._later.update(self.missing(keys))
        self.ledger.expect(self._later)

    def chain(self, smallest: Bucket, needed: Features) -> Chain:
        """The programs that run a step of this size now. Compiles them if nothing compiled can."""
        known = self._chains.get((smallest, needed))
        if known is None:
            known = self._chain_of(smallest, needed)
            if not (self._later or needed.own_functions):  # else a smaller one may be pending
                self._chains[smallest, needed] = known
        return known

    def _chain_of(self, smallest: Bucket, needed: Features) -> Chain:
        shapes = self.compiler.shapes
        is_chained = shapes.is_chained(smallest)
        own = needed.of(Part.FORWARD if is_chained else Part.STEP)
        behind = [needed.of(part) for part in self._slot_parts if is_chained]
        if shapes.makes_drafts and needed.drafts:
            behind.append(needed.of(Part.DRAFT))
        bucket = self.bucket_for(smallest, own, behind)
        found = {one.part: self.find(self._size(one, bucket), one) for one in (own, *behind)}
        for part in self._prompt_parts(needed):
            found[part] = self.find(Slots(shapes.scored_at_once), needed.of(part))
        return Chain(bucket, found)

    def _size(self, features: Features, bucket: Bucket) -> Bucket | Slots:
        """Size of a part's program in steps of this bucket."""
        by_bucket = features.part in BY_BUCKET
        return bucket if by_bucket else Slots(self.compiler.shapes.num_slots(bucket))

    def bucket_for(
        self, bucket: Bucket, needed: Features, heads: Sequence[Features] = ()
    ) -> Bucket:
        """The bucket to which a step of this size is padded now.

        That of the smallest planned program that covers the step (rare variants have fewer
        buckets). While this program or one of its `heads` is pending in the background, that of
        the smallest compiled program whose heads are compiled.
        """
        if needed.own_functions:  # no planned program has them
            return self._smallest_ready(bucket, needed)
        asked = (bucket, needed)
        if asked not in self._smallest:
            self._smallest[asked] = self._smallest_of(self._planned, *asked)
        wanted = self._smallest[asked]
        if wanted is None:
            return bucket
        if self._later and not (wanted not in self._later and self._has_heads(wanted, heads)):
            for key in (wanted, *self._heads_to_come(wanted, heads)):
                self.ledger.note_asked(key)
            ready = [key for key in list(self._compiled) if self._has_heads(key, heads)]
            wanted = self._smallest_of(ready, *asked) or wanted
        return wanted[0]

    @cached_property
    def _slot_parts(self) -> tuple[Part, ...]:
        return slot_parts(self.compiler.shapes.pooling, splits=self.compiler.splits)

    def _prompt_parts(self, needed: Features) -> tuple[Part, ...]:
        scores = needed.prompt_logprobs is not None
        return prompt_parts(self.compiler.shapes.pooling, scores=scores)

    def _has_heads(self, key: Key, heads: Sequence[Features]) -> bool:
        """Whether these heads are compiled for the bucket's slot count."""
        size = key[0]
        if not heads or isinstance(size, Slots):
            return not heads
        return not any(self._heads_to_come((size, key[1]), heads))

    def _heads_to_come(self, key: StepKey, heads: Sequence[Features]) -> Iterator[Key]:
        """Per part without a compiled program, the cheapest program that would serve."""
        for head in heads:
            size, able = self._size(head, key[0]), self._able(head)
            if not any((size, tier) in self._compiled for tier in able):
                yield size, (able or [head])[0]

    def _smallest_ready(self, bucket: Bucket, needed: Features) -> Bucket:
        """Bucket of a step with user callbacks: the smallest compiled one, while a thread compiles
        the exact one; without such a thread the exact one."""
        found = self._smallest_of(list(self._compiled), bucket, needed)
        if found is None or self.late is None:
            return bucket
        if found[0] != bucket:
            self.late.ask([(bucket, found[1])])
        return found[0]

    def _smallest_of(self, keys: Sequence[Key], bucket: Bucket, needed: Features) -> StepKey | None:
        """Of these programs, the one that runs the step with the least padding."""
        able = {tier: place for place, tier in enumerate(self._able(needed))}
        found = [
            (size, tier)
            for size, tier in keys
            if isinstance(size, Bucket) and size.covers(bucket) and tier in able
        ]

        def size(key: StepKey) -> tuple[int, int, int]:
            return key[0].num_tokens, key[0].pages, able[key[1]]

        return min(found, key=size, default=None)

    def lacking(self, needed: Features) -> list[Key]:
        """Programs that must be compiled before a request with these features may run without
        blocking a step.

        Needed are a forward large enough for every step and its heads; for other sizes, pending
        heads suffice.
        """
        shapes = self.compiler.shapes
        if not shapes.chained:
            return []
        slots = [Slots(count) for count in shapes.slot_rungs]
        found = [key for part in self._slot_parts for key in self._lacking(slots, needed.of(part))]
        for part in self._prompt_parts(needed):
            found += self._lacking([Slots(shapes.scored_at_once)], needed.of(part))
        parts = (Part.FORWARD, Part.DRAFT) if shapes.makes_drafts else (Part.FORWARD,)
        for part in parts:
            found += self._lacking([self._largest], needed.of(part))
        return found

    def _lacking(self, sizes: Sequence[Bucket | Slots], needed: Features) -> list[Key]:
        able, last = self._able(needed), sizes[-1]
        for tier in able:
            coming = all((one, tier) in self._compiled or (one, tier) in self._later
                         for one in sizes)  # fmt: skip
            if coming and (last, tier) in self._compiled:
                return []
        # Prefer the most capable: it also serves the rest of the batch.
        tier = next((tier for tier in able if (last, tier) in self._later), able[-1])
        return [
            (one, tier)
            for one in sizes
            if (one, tier) not in self._compiled and (one is last or (one, tier) not in self._later)
        ]

    def missing(self, wanted: Iterable[Key]) -> list[Key]:
        """The keys that are not compiled yet."""
        return [key for key in wanted if key not in self._compiled]

    def compile(self, key: Key) -> tuple[Compiled, LedgerEntry]:
        """Compile one program, without on-device autotuning once steps may run."""
        return self.compiler.compile(*key, measures=not self._warm)

    def compiled_by(self, compiler: StepCompiler) -> dict[Key, tuple[Compiled, LedgerEntry]]:
        """Recompile the current programs with another compiler (other shapes)."""
        return {key: compiler.compile(*key) for key in self._compiled}

    def use(
        self, compiler: StepCompiler, programs: dict[Key, tuple[Compiled, LedgerEntry]]
    ) -> None:
        """Replace the compiler and all programs."""
        self.compiler = compiler
        self._compiled.clear()
        self._chains.clear()
        for program in programs.values():
            self.keep(*program)

    def end_warm_up(self) -> None:
        """From now on compiles count as late: a step is blocked on them."""
        self._warm = True

    def find(self, size: Bucket | Slots, needed: Features) -> Found:
        """The cheapest compiled program that can run this; compiled now if there is none."""
        able = self._able(needed)
        for tier in able:
            if (size, tier) in self._compiled:
                return Found(self._compiled[size, tier], self.ledger.entries[size, tier])
        features = able[0] if able else needed
        if (size, features) in self._later:
            self.ledger.note_asked((size, features))
        self._late(size, features)
        return Found(self._compiled[size, features], self.ledger.entries[size, features])

    def _able(self, needed: Features) -> list[Features]:
        """Variants that can run this, cheapest first. If none is planned, variants extended by the
        rare features."""
        tiers = self._tiers_of[needed.part]
        able = [tier for tier in tiers if tier.covers(needed)]
        if able:
            return able
        joined = [tier.with_rare_of(needed) for tier in tiers]
        compiled = [tier for _, tier in list(self._compiled) if tier.covers(needed)]
        return list(dict.fromkeys([*compiled, *(one for one in joined if one.covers(needed))]))

    def expect(self, bucket: Bucket, needed: Features) -> None:
        """In strict mode, raise UnexpectedCompile if the plan's program is missing."""
        if self.strict:
            self.chain(bucket, needed)

    def forget(self, taps: TapSet) -> None:
        """Drop the programs of an unused tap set."""
        for bucket, features in [key for key in list(self._compiled) if taps in key[1].taps]:
            del self._compiled[bucket, features]
            self._chains.clear()
            self.ledger.entries.pop((bucket, features), None)  # shared with other replicas

    def _late(self, bucket: Bucket | Slots, features: Features) -> None:
        if self.strict and self._warm:
            raise UnexpectedCompile(
                f"strict mode: step {bucket} with features {features} was not compiled in warm-up. "
                "Add its variant to compilation_config['variants'], or use strict=False, which "
                "capture, intervene, prompt_embeds and logprob_token_ids always need."
            )
        if self._warm:  # before compiling, as a large model's program takes a minute
            logger.warning(
                "compiling %s, once (program %s, %s): a step waits for it, as warm-up left it out. "
                "compilation_config['variants'] says what is compiled at the start",
                features.in_words, bucket, features,
            )  # fmt: skip
        self.ledger.awaited += 1
        began = time.perf_counter()
        try:
            compiled, entry = self.compile((bucket, features))
        except Exception as error:
            raise UnexpectedCompile(
                f"step {bucket} with features {features} could not be compiled: "
                f"{type(error).__name__}: {error}"
            ) from error
        finally:
            self.ledger.awaited -= 1
            self.ledger.awaited_seconds += time.perf_counter() - began
        if self._warm:
            entry.after_warm_up = True
            logger.info("compiled in %.2f s", entry.seconds)
        self.keep(compiled, entry)
