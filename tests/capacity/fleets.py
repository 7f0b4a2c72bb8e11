"""Small fleets with steps of known length, without a model and without jax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jengine.capacity.simulation.fleet import Fleet
from jengine.capacity.simulation.replica import Clock, Replica, ReplicaKind, Run, made_up
from jengine.capacity.simulation.replica_pool import ReplicaPool, Routing
from jengine.capacity.simulation.step_times import StepLoad, stepwise
from jengine.capacity.simulation.trace import SyntheticTrace, Trace, TraceSettings
from jengine.config import CacheConfig, CacheGroup, CacheSpec, ScheduleConfig
from tests.executor.scripted import ScriptedExecutor

VOCAB = 97
GROUP = CacheGroup(CacheSpec("full", 2, 4), (0,))


@dataclass
class Steps:
    """Seconds that grow with what runs."""

    base: float = 0.01
    row: float = 0.0
    token: float = 0.0

    def seconds(self, load: StepLoad) -> float:
        return self.base + self.row * load.decode_rows + self.token * load.prefill_tokens

    def ends(self, load: StepLoad, at: float, runs: int, until: float) -> list[float]:
        return stepwise(self, load, at, runs, until)


def kind(blocks: int = 200, **more: Any) -> ReplicaKind:
    """Replicas with a small cache."""
    given: dict[str, Any] = {"times": Steps(0.01, 0.001, 0.0005), "token_bytes": 100, **more}
    schedule = ScheduleConfig(
        given.pop("rows", 8), given.pop("budget", 128), 256, prefill_tile=4, vocab_size=VOCAB
    )
    cache = CacheConfig((GROUP,), 4, (blocks,))
    return ReplicaKind(schedule, cache, **given)


def scripted(one: ReplicaKind) -> Run:
    """Steps that check every plan."""
    executor = ScriptedExecutor(one.cache, VOCAB)
    return lambda plan: executor.submit(plan).result()


def any_tokens(one: ReplicaKind) -> Run:
    """Steps that check nothing: neither copies of blocks nor failures are in their plans."""
    return made_up


def fleet(
    kinds: Sequence[tuple[ReplicaKind, int]],
    trace: TraceSettings | Trace,
    routing: Routing = "prefix",
    run: Callable[[ReplicaKind], Run] = scripted,
    link: float = 1e6,
) -> Fleet:
    """A fleet with so many replicas of each kind, in a pool per kind."""
    clock = Clock()
    if isinstance(trace, TraceSettings):
        trace = SyntheticTrace(replace(trace, vocab_size=VOCAB, longest=256))
    pools = [
        ReplicaPool(
            f"pool {place}", [Replica(one, clock, i, run(one)) for i in range(count)], routing
        )
        for place, (one, count) in enumerate(kinds)
    ]
    return Fleet(pools, clock, trace, link)
