"""The compile ledger: every program the engine made, what it cost and how it is used.

Plain data that a user can print; must not know how programs are compiled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from jengine.runner.report_types import ProgramCounts
from jengine.runner.variants.buckets import Bucket
from jengine.runner.variants.features import Features
from jengine.runner.variants.program_list import Key

# Widths of the printed columns: bucket, features, seconds, megabytes, hits, padded share.
COLUMNS = (16, 44, 8, 8, 7, 7)


@dataclass
class LedgerEntry:
    """One program."""

    bucket: Bucket
    features: Features
    seconds: float  # tracing, lowering and compiling, or loading from the persistent cache
    temp_bytes: int  # scratch memory of one run
    code_bytes: int
    after_warm_up: bool = False
    compiles: int = 1  # once for each data-parallel replica
    hits: int = 0
    runs: int = 0  # of the step: a burst has several a hit
    useful_tokens: int = 0

    @property
    def padded_share(self) -> float:
        """Share of the computed tokens that were padding."""
        computed = self.runs * self.bucket.num_tokens
        return 1 - self.useful_tokens / computed if computed else 0.0

    def count(self, tokens: int, repeats: int = 1) -> None:
        """Note one call with this many real tokens. (A burst may have ended early.)"""
        self.hits += 1
        self.runs += repeats
        self.useful_tokens += tokens


@dataclass
class CompileLedger:
    """All programs of one engine, in the order they were made. Its replicas share it.

    A thread may add programs while another one looks.
    """

    entries: dict[Key, LedgerEntry] = field(default_factory=dict)
    warm_up_seconds: float = 0.0
    # What is compiled while steps run, and how many steps would have run in it: each program until
    # it is there.
    to_come: dict[Key, int] = field(default_factory=dict)
    # Variants that warm-up leaves out: a step that needs one of them waits for its program.
    on_first_use: tuple[Features, ...] = ()

    def add(self, entry: LedgerEntry) -> None:
        """Enter a program, or what it cost to compile it for one more replica."""
        key = (entry.bucket, entry.features)
        known = self.entries.setdefault(key, entry)
        if known is not entry:
            known.compiles += 1
            known.seconds += entry.seconds
            known.after_warm_up |= entry.after_warm_up
        self.to_come.pop(key, None)

    def expect(self, keys: Iterable[Key]) -> None:
        """Enter programs that are to come."""
        for key in keys:
            self.to_come.setdefault(key, 0)

    def note_asked(self, key: Key) -> None:
        """Note that a step would have run in a program that is to come."""
        if key in self.to_come:
            self.to_come[key] += 1

    def asked_for(self, key: Key) -> int:
        """How many steps would have run in a program that is to come."""
        return self.to_come.get(key, 0)

    @property
    def compiles_after_warm_up(self) -> int:
        """Programs that a step had to wait for."""
        return sum(entry.compiles for entry in list(self.entries.values()) if entry.after_warm_up)

    @property
    def counts(self) -> ProgramCounts:
        """How many programs there are, and what may still be compiled."""
        return ProgramCounts(
            len(self.entries),
            self.compiles_after_warm_up,
            len(self.to_come),
            tuple(str(features) for features in self.on_first_use),
        )

    def as_dicts(self) -> list[dict[str, object]]:
        """For JSON."""
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
            f"{len(lines)} programs{times}, {total:.1f} s of compiling in "
            f"{self.warm_up_seconds:.1f} s of warm-up; "
            f"buckets are decode rows + prefill tokens x cache pages"
        )
        names = ", ".join(map(str, self.on_first_use))
        late = [f"compiled on first use: {names}"] if names else []
        return "\n".join([head, *lines, *to_come, foot, *late])
