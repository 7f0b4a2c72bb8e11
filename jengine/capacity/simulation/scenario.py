"""A scenario: what is simulated, as plain data that a process can be given as JSON.

In: JSON, or what a user says on the command line. Out: pools and a trace, ready to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from jengine.capacity.accelerators import ACCELERATORS
from jengine.capacity.device_layout import checked_layout
from jengine.capacity.paper import paper_plan
from jengine.capacity.simulation.autoscaling import Autoscaler, Autoscaling
from jengine.capacity.simulation.csv_trace import CsvTrace
from jengine.capacity.simulation.failures import fail_at_random
from jengine.capacity.simulation.fleet import Fleet
from jengine.capacity.simulation.paper_kind import paper_kind
from jengine.capacity.simulation.replica import Clock, Replica, ReplicaKind
from jengine.capacity.simulation.replica_pool import ROUTINGS, ReplicaPool, Routing
from jengine.capacity.simulation.table_times import read_table, table_kind
from jengine.capacity.simulation.trace import SyntheticTrace, Trace, TraceSettings
from jengine.errors import ConfigError

GIGA = 1e9
HOUR = 3600
MOST_REPLICAS = 1024
# Of requests and tokens that a plan on paper is asked about; a simulation has its own.
ANY_WORK = (1, None)


class ReplicaFailure(msgspec.Struct, frozen=True):
    """A replica that fails at a time, and restarts with an empty cache at `until`, if ever."""

    replica: int
    at: float
    until: float | None = None
    stage: int = 0


class PoolPlan(msgspec.Struct, frozen=True):
    """Replicas of a model, on devices that need not be here or with a table of measured steps."""

    replicas: int
    model: str = ""
    table: str | None = None
    settings: dict[str, Any] = {}  # of the engine
    device: str = "h200"
    tp: int = 1
    pp: int = 1
    network: float = 400.0  # Gbit/s of each device
    ep: int = 0  # devices of all replicas that share the experts; 0: those of one replica
    name: str = "replicas"
    dcp: int = 1
    pcp: int = 1
    balancedness: float = 1.0  # mean load of a device's experts over the highest


class Scenario(msgspec.Struct, frozen=True):
    """All inputs of a simulation."""

    pools: list[PoolPlan]  # one, or prefill and then decode
    trace: TraceSettings
    csv: str | None = None  # a file with the requests, in place of the synthetic ones
    routing: Routing = "prefix"
    link: float = 50.0  # GB/s at which a prefill replica sends keys and values
    host_gb: float = 0.0  # host memory of each replica for blocks that leave its cache
    copy_rate: float = 50.0  # GB/s between host and devices of a replica
    failures: list[ReplicaFailure] = []
    # Hours after which each replica dies, on average, and seconds until it is back; 0: never.
    mtbf: float = 0.0
    repair: float = 300.0
    autoscaling: Autoscaling | None = None  # of the only pool
    # Routers: each has its share of requests and replicas, and is simulated in a separate process.
    groups: int = 1

    def __post_init__(self) -> None:
        for pool in self.pools:
            if not 1 <= pool.replicas <= MOST_REPLICAS:
                raise ConfigError(
                    f"{pool.replicas} {pool.name}: expected 1 to {MOST_REPLICAS} of them."
                )
            if self.groups < 1 or pool.replicas % self.groups:
                raise ConfigError(
                    f"--groups {self.groups}: expected a divisor of the {pool.replicas} "
                    f"{pool.name}, so that every group has as many."
                )
            if pool.ep and pool.replicas * pool.tp % pool.ep:
                raise ConfigError(
                    f"--ep {pool.ep}: expected a divisor of the {pool.replicas * pool.tp} devices "
                    f"of all {pool.name}."
                )
        if self.routing not in ROUTINGS:
            raise ConfigError(f"routing={self.routing!r}: expected one of {', '.join(ROUTINGS)}.")
        if self.autoscaling and not 1 <= self.autoscaling.least <= self.pools[0].replicas:
            raise ConfigError(
                f"--min-replicas {self.autoscaling.least}: expected 1 to the "
                f"{self.pools[0].replicas} of --replicas."
            )
        for failure in self.failures:
            self._check_failure(failure)

    def _check_failure(self, failure: ReplicaFailure) -> None:
        count = self.pools[failure.stage].replicas
        if not 0 <= failure.replica < count:
            raise ConfigError(
                f"--fail {failure.replica}@{failure.at:g}: expected a replica from 0 to "
                f"{count - 1}."
            )
        if failure.until is not None and failure.until <= failure.at:
            raise ConfigError(
                f"--fail {failure.replica}@{failure.at:g}-{failure.until:g}: expected it to come "
                "back after it has died."
            )


def kind_of(pool: PoolPlan, scenario: Scenario) -> ReplicaKind:
    """Settings common to the replicas of a pool."""
    if pool.table is not None:
        kind = table_kind(read_table(Path(pool.table)))
    else:
        paper = paper_plan(
            pool.model, pool.settings, ACCELERATORS[pool.device],
            checked_layout(
                pool.tp, pool.pp, max(pool.ep // pool.tp, 1), None, pool.ep, pool.dcp, pool.pcp
            ),
            ANY_WORK, pool.network, balancedness=pool.balancedness,
        )  # fmt: skip
        kind = paper_kind(paper)
    return replace(
        kind,
        host_bytes=int(scenario.host_gb * GIGA),
        copy_rate=scenario.copy_rate * GIGA,
    )


def fleet_of(scenario: Scenario, kinds: Sequence[ReplicaKind], part: int = 0) -> Fleet:
    """The fleet of one group, which has every `groups`-th request and replica."""
    clock, pools = Clock(), []
    for pool, kind in zip(scenario.pools, kinds, strict=True):
        replicas = [
            Replica(kind, clock, number) for number in range(part, pool.replicas, scenario.groups)
        ]
        pools.append(ReplicaPool(pool.name, replicas, scenario.routing))
    longest = min(pool.replicas[0].kind.schedule.max_model_len for pool in pools)
    fleet = Fleet(pools, clock, trace_of(scenario, part, longest), scenario.link * GIGA)
    for failure in scenario.failures:
        index, group = divmod(failure.replica, scenario.groups)
        if group == part:
            fleet.at(failure.at, partial(fleet.fail, failure.stage, index))
            if failure.until is not None:
                fleet.at(failure.until, partial(fleet.come_back, failure.stage, index))
    if scenario.mtbf:
        fail_at_random(fleet, scenario.mtbf * HOUR, scenario.repair, (scenario.trace.seed, part))
    if scenario.autoscaling:
        Autoscaler(fleet, scenario.autoscaling)
    return fleet


def trace_of(scenario: Scenario, part: int, longest: int) -> Trace:
    """The requests of one group."""
    settings = replace(scenario.trace, part=part, of=scenario.groups, longest=longest)
    if scenario.csv is not None:
        return CsvTrace(Path(scenario.csv), settings)
    return SyntheticTrace(settings)
