"""One replica on a virtual clock: a real scheduler and cache, made-up tokens, and seconds per step.

In: WireRequests and the time. Out: the deltas of the steps that have ended by then. It plans and
commits as EngineCore does: the next step is queued while one runs. Must not know other replicas.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from jengine.capacity.simulation.host_tier import HostTier
from jengine.capacity.simulation.jumps import Jumps
from jengine.capacity.simulation.step_times import StepLoad, StepTimes, load_of, pure_decode
from jengine.config import CacheConfig, ScheduleConfig
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.outputs import StepOutput, TokenDelta
from jengine.plan import Plan
from jengine.request import ReadPrompt, Request, WireRequest
from jengine.scheduler.recorder import Recorder
from jengine.scheduler.scheduler import Scheduler

MADE_UP = 7  # every token of every answer, unless an executor says otherwise
NEVER = float("inf")
Run = Callable[[Plan], StepOutput]


def made_up(plan: Plan) -> StepOutput:
    """Output of a plan with constant tokens: no model runs."""
    count = len(plan.entries)
    sampled = count if count == plan.num_decodes else np.count_nonzero(plan.entries.wants_tokens)
    return made_up_output(int(sampled), plan.repeats)


@lru_cache(maxsize=4096)
def made_up_output(sampled: int, runs: int) -> StepOutput:
    """Constant tokens for `sampled` rows in each of `runs` runs. Shared: must not be modified."""
    return StepOutput(np.full((sampled, runs), MADE_UP, np.int32))


@dataclass
class Clock:
    """Virtual time, in seconds."""

    now: float = 0.0


@dataclass(frozen=True)
class ReplicaKind:
    """Settings common to the replicas of a pool."""

    schedule: ScheduleConfig
    cache: CacheConfig
    times: StepTimes
    depth: int = 1  # plans that may be in flight while one is read
    stages: int = 1  # of a pipeline, whose slowest one takes what `times` says
    devices: int = 1
    idle_seconds: float = 0.0  # what a step takes longer before which nothing ran
    token_bytes: int = 0  # keys and values of one token, on all devices
    host_bytes: int = 0  # of the tier in host memory; 0: there is none
    copy_rate: float = 1.0  # bytes per second between host and devices


class Incoming(NamedTuple):
    """A request whose first `computed` tokens arrive with their KV from another replica or the
    host."""

    wire: WireRequest
    hashes: Sequence[bytes]
    tokens: int


class RunningStep(NamedTuple):
    """A submitted plan, with the end times of its runs."""

    plan: Plan
    output: StepOutput
    ends: list[float]  # of each of its runs


class LookAhead(NamedTuple):
    """Predicted end times of a step's runs, by which a jump was chosen before the plan
    was built."""

    began: float
    load: StepLoad
    ends: list[float]


NOT_LOOKED = LookAhead(NEVER, pure_decode(0, 0), [])


@dataclass
class Work:
    """Counters of one replica."""

    steps: int = 0
    busy: float = 0.0  # seconds
    rows: float = 0.0  # row-seconds of decodes
    prefilled: int = 0  # tokens
    decoded: int = 0
    preemptions: int = 0
    cache_use: float = 0.0  # seconds times the share of blocks in use
    absent: float = 0.0  # seconds in which there was no such replica


@dataclass
class Replica:
    """One scheduler and cache on the virtual clock."""

    kind: ReplicaKind
    clock: Clock
    number: int = 0
    run: Run = made_up
    horizon: Callable[[bool], float] = lambda waiting: 0.0  # see Jumps
    work: Work = field(default_factory=Work)
    _running: deque[RunningStep] = field(default_factory=deque)
    _incoming: deque[Incoming] = field(default_factory=deque)
    _free_at: float = 0.0  # when the devices, or the first stage, can begin another step
    _hold: float = 0.0  # no plan is made before: a jump's last run has not begun
    _looked_ahead: LookAhead = NOT_LOOKED
    _preempted: int = 0  # by schedulers before this one
    copies_until: float = 0.0  # when its link to the host, or to other replicas, is idle again

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Reset to an empty cache, as at the start or after a failure."""
        kind = self.kind
        self._running.clear()
        self._incoming.clear()
        self._free_at = self.copies_until = self.clock.now
        self._hold = 0.0
        self.cache = CacheCoordinator(kind.cache)
        self.scheduler = Scheduler(
            kind.schedule,
            self.cache,
            depth=kind.depth,
            spacing=kind.stages,
            decode_length=Jumps(self.cache, self._runs_until_the_horizon),
            recorder=Recorder(self.number, clock=lambda: self.clock.now),
        )
        self._preempted = self.work.preemptions
        blocks = kind.host_bytes // max(kind.token_bytes * kind.cache.block_size, 1)
        self.tier = HostTier(self.cache, blocks) if blocks else None

    def add(self, wire: WireRequest, hashes: Sequence[bytes] = ()) -> None:
        self.scheduler.add(wire, self._prompt(wire, hashes))

    def _prompt(self, wire: WireRequest, hashes: Sequence[bytes]) -> ReadPrompt:
        tokens, version = array("i", wire.prompt_token_ids), self.cache.weights_version
        return ReadPrompt(tokens, version, b"".join(hashes))

    def take_in(self, incoming: Incoming) -> None:
        """Queue a request whose KV has been transferred here."""
        self._incoming.append(incoming)

    def held(self, request: Request) -> int:
        """Tokens of a request's prefix cached on the device or in host memory."""
        found = self.cache.find_prefix(request)
        return found + (self.fetchable(request, found) if self.tier else 0)

    def fetchable(self, request: Request, found: int) -> int:
        """Tokens in host memory that continue a device prefix of `found` tokens."""
        return self.tier.beyond(request, found) if self.tier else 0

    def copy_ends(self, num_bytes: float, rate: float) -> float:
        """End time of a transfer queued now; transfers are serialised."""
        self.copies_until = max(self.copies_until, self.clock.now) + num_bytes / rate
        return self.copies_until

    @property
    def wakes_at(self) -> float:
        """Time of the next event of this replica, if no request arrives."""
        if not self._running:
            return NEVER
        end = self._running[0].ends[-1]
        return min(end, self._hold) if self._hold > self.clock.now else end

    def read(self) -> tuple[list[TokenDelta], list[float]]:
        """Commit the step that has ended by now, if any: its deltas, and the end time of
        each run."""
        if not self._running or self._running[0].ends[-1] > self.clock.now:
            return [], []
        done = self._running.popleft()
        return self.scheduler.commit(done.plan, done.output), done.ends

    def queue(self) -> None:
        """Schedule and submit further steps, as far as the pipeline depth allows."""
        while self._incoming and self._has_taken_in(self._incoming[0]):
            self._incoming.popleft()
        while self.clock.now >= self._hold and len(self._running) <= self.kind.depth:
            plan = self.scheduler.schedule()
            if plan is None:
                break
            self._submit(plan)

    def _has_taken_in(self, incoming: Incoming) -> bool:
        """Whether there was a row, and blocks for what has been copied, which the scheduler then
        finds as a cached prefix. An idle replica takes a request whether or not they fit."""
        scheduler, wire = self.scheduler, incoming.wire
        busy = scheduler.num_running + scheduler.num_waiting
        if busy >= self.kind.schedule.max_num_seqs:
            return False
        copied = WireRequest(
            request_id=f"copy of {wire.request_id}",
            prompt_token_ids=wire.prompt_token_ids[: incoming.tokens + 1],
            sampling=wire.sampling,
            max_tokens=1,
        )
        request = Request(copied, len(copied.prompt_token_ids) + 1, 0)
        request.block_hashes = list(incoming.hashes[: incoming.tokens // self.cache.block_size])
        hit = self.cache.find_prefix(request)
        if incoming.tokens > hit:
            if self.cache.allocate(request, incoming.tokens - hit, hit) is None:
                if busy:
                    return False
            else:
                self.cache.publish(request, incoming.tokens)
                self.cache.free(request)
        scheduler.add(wire, self._prompt(wire, incoming.hashes))
        return True

    @property
    def _next_begins(self) -> float:
        """Start time of a step submitted now."""
        now = self.clock.now
        return self._free_at if self._free_at >= now else now + self.kind.idle_seconds

    def _submit(self, plan: Plan) -> None:
        began = self._next_begins
        load, looked = load_of(plan), self._looked_ahead
        if looked.began == began and looked.load == load:
            ends = looked.ends[: plan.repeats]
        else:
            ends = self.kind.times.ends(load, began, plan.repeats, NEVER)
        self._free_at = at = ends[-1]
        self._hold = ends[-2] if len(ends) > 1 else 0.0
        passing = (self.kind.stages - 1) * (at - began)  # through the other stages
        if passing:
            ends = [end + passing for end in ends]
        self._running.append(RunningStep(plan, self.run(plan), ends))
        self._count(plan, load.decode_rows, load.prefill_tokens, at - began)

    def _count(self, plan: Plan, decodes: int, prefilled: int, seconds: float) -> None:
        work = self.work
        work.steps += plan.repeats
        work.busy += seconds
        work.rows += seconds * decodes
        work.prefilled += prefilled
        work.decoded += decodes * plan.repeats
        work.preemptions = self._preempted + self.scheduler.num_preemptions
        work.cache_use += seconds * self.cache.usage

    def _runs_until_the_horizon(self, rows: int, context: int, most: int, waiting: bool) -> int:
        """Number of decode steps that certainly run before another event: a request that ends may
        be replaced, and arrivals may join."""
        if rows < self.scheduler.num_running:
            return 1
        horizon = self.horizon(waiting)
        began, load = self._next_begins, pure_decode(rows, context)
        if began >= horizon:
            return 1
        ends = self.kind.times.ends(load, began, most, horizon)
        self._looked_ahead = LookAhead(began, load, ends)
        return max(len(ends) - (ends[-1] > horizon), 1)
