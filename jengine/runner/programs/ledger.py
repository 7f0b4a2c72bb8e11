"""Compile statistics (the ledger): each program's compile cost, memory and use.

Plain data that a user can print. Must not know how programs are compiled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from jengine.counts import ProgramTotals
from jengine.runner.report_types import ProgramCounts
from jengine.runner.variants.buckets import Bucket, Slots
from jengine.runner.variants.features import Features
from jengine.runner.variants.parts import RUNS_TOKENS
from jengine.runner.variants.program_list import Key

# Widths of the printed columns: bucket, features, seconds, megabytes, hits, padded share.
COLUMNS = (16, 44, 8, 8, 7, 7)


@dataclass
class LedgerEntry:
    bucket: Bucket | Slots
    features: Features
    seconds: float  # tracing, lowering and compiling, or loading from the persistent cache
    temp_bytes: int  # scratch memory and results of one run
    code_bytes: int
    after_warm_up: bool = False  # a step waited for it
    beside_steps: bool = False  # compiled while steps ran; only requests waited for it
    compiles: int = 1  # one per data-parallel replica
    executions: int = 0  # of the program; XLA captures its CUDA graphs in the second
    hits: int = 0  # steps that ran in it
    runs: int = 0  # of the step: a multi-step decode has several per hit
    useful_tokens: int = 0
    useful_prompt_tokens: int = 0  # the prefill tokens among them

    @property
    def padded_share(self) -> float:
        """Padding as a share of computed tokens."""
        computed = self.runs * self.bucket.num_tokens
        return 1 - self.useful_tokens / computed if computed else 0.0

    def count(self, tokens: int, repeats: int = 1, prompt_tokens: int = 0) -> None:
        """Count one call with this many real tokens. `repeats`: planned runs; fewer may have
        run."""
        self.hits += 1
        if self.features.part not in RUNS_TOKENS:
            return
        self.runs += repeats
        self.useful_tokens += tokens
        self.useful_prompt_tokens += prompt_tokens


@dataclass
class CompileLedger:
    """All programs of one engine in compile order, shared by its replicas.

    One thread may add programs while another reads.
    """

    entries: dict[Key, LedgerEntry] = field(default_factory=dict)
    warm_up_seconds: float = 0.0
    awaited: int = 0  # programs being compiled while a step waits
    awaited_seconds: float = 0.0  # total time that steps have waited
    # Programs still to be compiled in the background, and the number of steps that requested each.
    to_come: dict[Key, int] = field(default_factory=dict)
    # Variants that warm-up leaves out; the first step that needs one waits for its program.
    on_first_use: tuple[Features, ...] = ()

    def add(self, entry: LedgerEntry) -> None:
        """Add a program, or the cost of compiling it for another replica."""
        key = (entry.bucket, entry.features)
        known = self.entries.setdefault(key, entry)
        if known is not entry:
            known.compiles += 1
            known.seconds += entry.seconds
            known.after_warm_up |= entry.after_warm_up
        self.to_come.pop(key, None)

    def expect(self, keys: Iterable[Key]) -> None:
        """Register programs that will be compiled in the background."""
        for key in keys:
            self.to_come.setdefault(key, 0)

    def note_asked(self, key: Key) -> None:
        """Count a step that wanted a program before it was compiled."""
        if key in self.to_come:
            self.to_come[key] += 1

    def asked_for(self, key: Key) -> int:
        """Number of steps that wanted this program before it was compiled."""
        return self.to_come.get(key, 0)

    @property
    def hits(self) -> int:
        return sum(entry.hits for entry in list(self.entries.values()))

    @property
    def compiles_after_warm_up(self) -> int:
        """Programs that a step was blocked on."""
        return sum(entry.compiles for entry in list(self.entries.values()) if entry.after_warm_up)

    @property
    def prefill_padding(self) -> float:
        """Padding as a share of computed prefill tokens."""
        entries = list(self.entries.values())
        computed = sum(
            entry.runs * entry.bucket.prefill_tokens
            for entry in entries
            if isinstance(entry.bucket, Bucket)
        )
        useful = sum(entry.useful_prompt_tokens for entry in entries)
        return 1 - useful / computed if computed else 0.0

    @property
    def counts(self) -> ProgramCounts:
        """Number of programs compiled, and still pending."""
        return ProgramCounts(
            len(self.entries),
            self.compiles_after_warm_up,
            len(self.to_come),
            tuple(str(features) for features in self.on_first_use),
        )

    @property
    def totals(self) -> ProgramTotals:
        """Compiles per bucket, and real and computed tokens of all steps."""
        compiles: dict[str, int] = {}
        seconds, late, useful, computed = 0.0, 0, 0, 0
        for entry in list(self.entries.values()):
            name = str(entry.bucket)
            compiles[name] = compiles.get(name, 0) + entry.compiles
            seconds += entry.seconds
            late += entry.compiles if entry.after_warm_up else 0
            useful += entry.useful_tokens
            computed += entry.runs * entry.bucket.num_tokens
        return ProgramTotals(
            compiles, seconds, late, useful, computed, self.awaited, self.awaited_seconds,
            self._late_by_part(),
        )  # fmt: skip

    def _late_by_part(self) -> dict[str, int]:
        """Compiles after warm-up, by part of the step."""
        found: dict[str, int] = {}
        for entry in list(self.entries.values()):
            if entry.after_warm_up or entry.beside_steps:
                part = entry.features.part.value
                found[part] = found.get(part, 0) + entry.compiles
        return found

    def as_dicts(self) -> list[dict[str, object]]:
        return [
            {
                **asdict(entry),
                "bucket": str(entry.bucket),
                "features": str(entry.features),
                "padded_share": round(entry.padded_share, 4),
            }
            for entry in list(self.entries.values())
        ]

    def __str__(self) -> str:
        names = ("bucket", "features", "seconds", "temp MB", "hits", "padded")
        head = " ".join(f"{name:>{width}}" for name, width in zip(names, COLUMNS, strict=True))
        entries = list(self.entries.values())
        lines = [
            f"{entry.bucket!s:>16} {entry.features!s:>44} {entry.seconds:8.2f} "
            f"{entry.temp_bytes / 1e6:8.1f} {entry.hits:7d} {entry.padded_share:7.1%}"
            + ("  compiled late" if entry.after_warm_up else "")
            + ("  compiled beside steps" if entry.beside_steps else "")
            for entry in entries
        ]
        to_come = [
            f"{bucket!s:>16} {features!s:>44} not compiled yet"
            for bucket, features in list(self.to_come)
        ]
        total = sum(entry.seconds for entry in entries)
        compiles = sum(entry.compiles for entry in entries)
        times = f" compiled {compiles} times" if compiles > len(lines) else ""
        foot = (
            f"{len(lines)} programs{times}, {total:.1f} s of compiling, several at once; "
            f"the engine waited {self.warm_up_seconds:.1f} s for those that it began with; "
            f"buckets are decode rows + prefill tokens x cache pages"
        )
        names = ", ".join(map(str, self.on_first_use))
        late = [f"compiled on first use: {names}"] if names else []
        return "\n".join([head, *lines, *to_come, foot, *late])
