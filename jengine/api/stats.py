"""The result of `stats()`: counts of requests, cache use and programs, printable. No jax."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from jengine.counts import NO_DRAFT_COUNTS, Counts, DraftCounts
from jengine.runner.report_types import ProgramCounts

OF_COUNTS = (
    "running", "waiting", "preemptions", "cache_usage", "prefix_queries", "prefix_hits",
    "drafts", "weights_version", "replicas",
)  # fmt: skip


@dataclass(frozen=True)
class EngineStats:
    """Counts of an engine's requests, cache use and compiled programs."""

    running: int
    waiting: int
    preemptions: int
    cache_usage: float
    prefix_queries: int
    prefix_hits: int
    programs: int
    compiles_after_warm_up: int
    drafts: DraftCounts = NO_DRAFT_COUNTS  # of speculative decoding
    weights_version: int = 0  # number of parameter updates
    replicas: tuple[Counts, ...] = ()  # per data-parallel replica, if there are several
    programs_to_come: int = 0  # being compiled while requests run
    on_first_use: tuple[str, ...] = ()  # step variants that the first request for them compiles

    @classmethod
    def of(cls, counts: Counts, programs: ProgramCounts) -> EngineStats:
        """Combine the scheduler's and the compiler's counts."""
        return cls(
            **{name: getattr(counts, name) for name in OF_COUNTS},
            **msgspec.structs.asdict(programs),
        )

    def __str__(self) -> str:
        programs = (
            f"programs {self.programs} ({self.compiles_after_warm_up} compiled after warm-up)"
        )
        if self.programs_to_come:
            programs += f", {self.programs_to_come} still to be compiled"
        if self.on_first_use:
            programs += f", compiled on first use: {', '.join(self.on_first_use)}"
        each = [f"\n  replica {i}: {in_words(one)}" for i, one in enumerate(self.replicas)]
        return f"{in_words(self)}, {programs}{''.join(each)}"


def in_words(counts: Counts | EngineStats) -> str:
    """Requests and cache use of an engine or of one of its replicas."""
    queries = counts.prefix_queries
    rate = counts.prefix_hits / queries if queries else 0.0
    words = (
        f"running {counts.running}, waiting {counts.waiting}, preemptions {counts.preemptions}, "
        f"cache in use {counts.cache_usage:.1%}, prefix cache hit rate {rate:.1%}"
    )
    drafts = counts.drafts
    if drafts.drafted:
        words += (
            f", drafted {drafts.drafted}, accepted {drafts.accepted / drafts.drafted:.1%}, "
            f"{drafts.mean_length:.2f} tokens per step with drafts"
        )
    return words
