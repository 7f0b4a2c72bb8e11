"""Groups of replicas in a process of their own: `python -m jengine.capacity.simulation.group PART
...`.

In: a Scenario as JSON on standard input. Out: their GroupResults as msgpack on standard output.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from jengine.capacity.simulation.replica import ReplicaKind
from jengine.capacity.simulation.results import GroupResult, group_result
from jengine.capacity.simulation.scenario import Scenario, fleet_of, kind_of


def run_parts(scenario: Scenario, parts: Iterable[int]) -> Iterator[GroupResult]:
    """Simulate groups, one after the other."""
    kinds = [kind_of(pool, scenario) for pool in scenario.pools]
    return (run_group(scenario, kinds, part) for part in parts)


def run_group(scenario: Scenario, kinds: Sequence[ReplicaKind], part: int) -> GroupResult:
    fleet = fleet_of(scenario, kinds, part)
    # Nothing here refers to itself in circles, and a collector would look at everything again and
    # again.
    gc.collect()
    gc.freeze()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        fleet.run()
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
    return group_result(fleet.history, fleet.sites)


def main() -> None:
    """Read, run, write."""
    scenario = msgspec.json.decode(sys.stdin.buffer.read(), type=Scenario)
    results = list(run_parts(scenario, map(int, sys.argv[1:])))
    sys.stdout.buffer.write(msgspec.msgpack.encode(results))


if __name__ == "__main__":
    main()
