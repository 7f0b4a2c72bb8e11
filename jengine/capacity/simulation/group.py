"""A group of replicas in a process of its own: `python -m jengine.capacity.simulation.group PART`.

In: a Scenario as JSON on standard input. Out: a GroupResult as msgpack on standard output.
"""

from __future__ import annotations

import gc
import sys

import msgspec

from jengine.capacity.simulation.results import GroupResult, group_result
from jengine.capacity.simulation.scenario import Scenario, fleet_of


def run_group(scenario: Scenario, part: int) -> GroupResult:
    """Simulate one group."""
    fleet = fleet_of(scenario, part)
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
    result = run_group(scenario, int(sys.argv[1]))
    sys.stdout.buffer.write(msgspec.msgpack.encode(result))


if __name__ == "__main__":
    main()
