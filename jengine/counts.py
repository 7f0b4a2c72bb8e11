"""Statistics of an engine core as plain data: counts, histograms, and the times of a request.

Sent by cores to their front ends. Counters and histograms are cumulative, so that a front end which
misses a message loses nothing. Every duration is measured on one process's monotonic clock.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Sequence
from itertools import zip_longest
from typing import Self

import msgspec
import numpy as np

# Histogram buckets: tokens per step, and seconds per phase of a step.
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
STEP_SECONDS = (
    .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60,
)  # fmt: skip
# Histogram buckets for lifetimes, idle times and reuse gaps of KV blocks, in seconds.
BLOCK_SECONDS = (
    .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800,
)  # fmt: skip
# Phases of a step: choosing its requests; from there to its output (packing, queueing, waiting for
# the device); appending tokens to requests.
PHASES = ("schedule", "run", "commit")


class Histogram(msgspec.Struct):
    """Observations counted by buckets, as Prometheus does it."""

    bounds: list[float]  # inclusive upper bounds; the last bucket is unbounded
    counts: list[int]  # per bucket, not cumulative
    total: float = 0.0

    @classmethod
    def of(cls, bounds: Sequence[float]) -> Self:
        return cls(list(bounds), [0] * (len(bounds) + 1))

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def observe_all(self, values: Sequence[float]) -> None:
        """Count many values at once, vectorised."""
        buckets = np.searchsorted(self.bounds, values)
        found = np.bincount(buckets, minlength=len(self.counts)).tolist()
        self.counts = [count + more for count, more in zip(self.counts, found, strict=True)]
        self.total += sum(values)

    def copy(self) -> Self:
        return type(self)(self.bounds, list(self.counts), self.total)

    def plus(self, other: Self) -> Self:
        """Sum of two histograms with equal bounds."""
        assert self.bounds == other.bounds, "histograms of different buckets"
        counts = [one + two for one, two in zip(self.counts, other.counts, strict=True)]
        return type(self)(self.bounds, counts, self.total + other.total)


class RequestTimes(msgspec.Struct, frozen=True, gc=False):
    """Seconds that a request spent waiting and running, measured in the core.

    A preemption before the first token adds to `queue` (until the request is scheduled again), a
    later one to `decode`.
    """

    queue: float = 0.0  # from arrival in the core until scheduled
    prefill: float = 0.0  # from then to the first token
    decode: float = 0.0  # from the first token to the last
    preemptions: int = 0
    engine: int = 0  # index of the engine or data-parallel replica

    def of_engine(self, index: int) -> RequestTimes:
        """Set the index of the engine that answered."""
        return msgspec.structs.replace(self, engine=index)


class ProgramTotals(msgspec.Struct, frozen=True):
    """Counts of compiled programs, and of real and padded tokens in their steps."""

    compiles: dict[str, int] = {}  # by bucket
    seconds: float = 0.0  # of compiling, or loading compiled programs
    unexpected: int = 0  # compilations after warm-up that a step waited for
    useful_tokens: int = 0
    computed_tokens: int = 0  # padding included
    awaited: int = 0  # programs being compiled while a step waits for them
    awaited_seconds: float = 0.0  # total wait of steps for the compiler
    late: dict[str, int] = {}  # compilations after warm-up, by part of the step

    def plus(self, other: ProgramTotals) -> ProgramTotals:
        """Add the counts of another replica."""
        names = {*self.compiles, *other.compiles}
        return ProgramTotals(
            {name: self.compiles.get(name, 0) + other.compiles.get(name, 0) for name in names},
            self.seconds + other.seconds,
            self.unexpected + other.unexpected,
            self.useful_tokens + other.useful_tokens,
            self.computed_tokens + other.computed_tokens,
            self.awaited + other.awaited,
            self.awaited_seconds + other.awaited_seconds,
            {
                part: self.late.get(part, 0) + other.late.get(part, 0)
                for part in {*self.late, *other.late}
            },
        )


class DraftCounts(msgspec.Struct, frozen=True):
    """Speculative decoding: draft tokens that steps have run, and how many were accepted."""

    drafts: int = 0  # draft runs, one per row and step
    drafted: int = 0
    accepted: int = 0
    # By position in the run.
    drafted_at: list[int] = []
    accepted_at: list[int] = []

    @property
    def mean_length(self) -> float | None:
        """Mean tokens per row and step with drafts: accepted drafts and the token after."""
        return 1 + self.accepted / self.drafts if self.drafts else None

    def plus(self, other: DraftCounts) -> DraftCounts:
        """Add the counts of another replica."""
        return DraftCounts(
            self.drafts + other.drafts,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
            added(self.drafted_at, other.drafted_at),
            added(self.accepted_at, other.accepted_at),
        )


def added(one: list[int], other: list[int]) -> list[int]:
    """Add two lists item by item, padding the shorter one with zeros."""
    return [a + b for a, b in zip_longest(one, other, fillvalue=0)]


NO_DRAFT_COUNTS = DraftCounts()


class CopyCounts(msgspec.Struct, frozen=True):
    """Counts of KV block copies between the device, host memory and a connector."""

    loaded_bytes: int = 0  # host memory to device
    stored_bytes: int = 0  # device to host memory
    fetched: int = 0  # blocks fetched by a connector
    failed: int = 0  # blocks that a connector failed to fetch
    used_slots: int = 0  # blocks in host memory
    slots: int = 0  # capacity in blocks

    @property
    def usage(self) -> float:
        """Used share of the host memory for blocks, 0 to 1."""
        return self.used_slots / self.slots if self.slots else 0.0

    def plus(self, other: CopyCounts) -> CopyCounts:
        """Add the counts of another replica."""
        return CopyCounts(
            *(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__)
        )


def block_histogram() -> Histogram:
    return Histogram.of(BLOCK_SECONDS)


class BlockTimes(msgspec.Struct):
    """Residency times, in seconds, of sampled KV cache blocks."""

    lifetime: Histogram = msgspec.field(default_factory=block_histogram)
    idle_before_evict: Histogram = msgspec.field(default_factory=block_histogram)  # since last use
    reuse_gap: Histogram = msgspec.field(default_factory=block_histogram)  # from use to use

    def plus(self, other: BlockTimes) -> BlockTimes:
        """Add the observations of another replica."""
        return BlockTimes(
            self.lifetime.plus(other.lifetime),
            self.idle_before_evict.plus(other.idle_before_evict),
            self.reuse_gap.plus(other.reuse_gap),
        )

    def copy(self) -> BlockTimes:
        return BlockTimes(
            self.lifetime.copy(), self.idle_before_evict.copy(), self.reuse_gap.copy()
        )


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a core's requests, steps and cache. Counters start at zero with the core."""

    running: int = 0
    waiting: int = 0
    deferred: int = 0  # of the waiting: held back by a gate while others are admitted
    preemptions: int = 0
    cache_usage: float = 0.0
    prefix_queries: int = 0
    prefix_hits: int = 0
    external_queries: int = 0  # tokens not cached on the device, looked up elsewhere
    external_hits: int = 0  # of these, loaded from host memory or a connector
    sleep_level: int = 0  # 1: parameters offloaded or the cache dropped, 2: all dropped
    weights_version: int = 0  # number of parameter updates
    corrupted: int = 0  # requests ended by non-finite logits or impossible tokens
    prompt_tokens: int = 0  # of requests whose prefill is complete
    cached_prompt_tokens: int = 0  # of these, prefix cache hits
    external_prompt_tokens: int = 0  # of these, loaded from host memory or a connector
    generation_tokens: int = 0
    steps: int = 0  # a multi-step decode counts once per repetition
    query_tokens: int = 0  # tokens that steps have run
    attended_tokens: int = 0  # context lengths attended to, summed over query tokens
    loaded_tokens: int = 0  # tokens whose KV attention has read: once per entry
    last_step_age: float = 0.0  # seconds since the last commit, or since start
    step_tokens: Histogram = msgspec.field(default_factory=lambda: Histogram.of(STEP_TOKENS))
    step_seconds: dict[str, Histogram] = {}  # by phase
    drafts: DraftCounts = NO_DRAFT_COUNTS
    copies: CopyCounts = CopyCounts()
    programs: ProgramTotals = ProgramTotals()
    block_times: BlockTimes | None = None  # None: not measured
    replicas: tuple[Counts, ...] = ()  # per data-parallel replica, if there are several

    @property
    def each(self) -> tuple[Counts, ...]:
        """Counts per replica; for a single scheduler, these."""
        return self.replicas or (self,)

    def later(self, seconds: float) -> Counts:
        """Advance the counts by `seconds` in which no step has ended."""
        return msgspec.structs.replace(
            self,
            last_step_age=self.last_step_age + seconds,
            replicas=tuple(one.later(seconds) for one in self.replicas),
        )


# Merged by maximum rather than sum: all replicas get the same parameters. By minimum: one replica's
# step shows that the process makes progress.
LARGEST = ("weights_version", "sleep_level")
SMALLEST = ("last_step_age",)
AVERAGED = ("cache_usage",)
# Structs with merge rules of their own.
MERGED = (
    "replicas", "programs", "drafts", "copies", "step_tokens", "step_seconds", "block_times",
)  # fmt: skip


def together(each: Sequence[Counts]) -> Counts:
    """Merge the counts of several replicas."""
    values: dict[str, object] = {"replicas": tuple(each)}
    for name in Counts.__struct_fields__:
        if name not in MERGED:
            values[name] = _combined(name, [getattr(one, name) for one in each])
    values["programs"] = functools.reduce(ProgramTotals.plus, (one.programs for one in each))
    values["drafts"] = functools.reduce(DraftCounts.plus, (one.drafts for one in each))
    values["copies"] = functools.reduce(CopyCounts.plus, (one.copies for one in each))
    times = [one.block_times for one in each if one.block_times is not None]
    values["block_times"] = functools.reduce(BlockTimes.plus, times) if times else None
    first, *others = (one.step_tokens for one in each)
    for histogram in others:
        first = first.plus(histogram)
    seconds = dict(each[0].step_seconds)
    for counts in each[1:]:
        for phase, histogram in counts.step_seconds.items():
            seconds[phase] = seconds[phase].plus(histogram) if phase in seconds else histogram
    return Counts(**values, step_tokens=first, step_seconds=seconds)  # pyrefly: ignore


def _combined(name: str, values: list[float]) -> float:
    if name in LARGEST:
        return max(values)
    if name in SMALLEST:
        return min(values)
    return sum(values) / len(values) if name in AVERAGED else sum(values)
