"""One simulation from a scenario to its result.

In: a Scenario, objectives, a price. Out: a dict for JSON, from which text and pages are made.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from jengine.bench.frame import earlier
from jengine.capacity.simulation.replica_groups import run_groups
from jengine.capacity.simulation.results import figures
from jengine.capacity.simulation.scenario import Scenario

KIND = "simulation"
read = partial(earlier, kind=KIND, command="simulate")
LEFT_OUT = (
    "HTTP, tokenizers and the network between clients and replicas",
    "compiling, warming up, and loading of weights after a failure",
)


def simulate(
    scenario: Scenario, command: str, objectives: Mapping[str, float], price: float | None
) -> dict[str, Any]:
    """Run a simulation; the command is kept with the result."""
    began = time.monotonic()
    groups = run_groups(scenario)
    found = figures(groups, objectives, price)
    return {
        "bench": KIND,
        "command": command,
        "scenario": msgspec.to_builtins(scenario),
        "wall_seconds": time.monotonic() - began,
        "figures": found,
        "left_out": [*LEFT_OUT, *left_out(scenario)],
    }


def left_out(scenario: Scenario) -> list[str]:
    """Costs that this scenario's time model leaves out, for the report."""
    notes = []
    if any(pool.table is None for pool in scenario.pools):
        notes.append("the host's own time for a step, which the next one hides while devices run")
        notes.append(
            "everything that `jengine plan` leaves out: no step was timed, exchanges overlap with "
            "nothing, and padding to compiled sizes is free"
        )
    if any(pool.table is None and pool.balancedness == 1 for pool in scenario.pools):
        notes.append("uneven choices of experts, which --balancedness takes from a measurement")
    if any(pool.ep for pool in scenario.pools):
        notes.append(
            "waiting of replicas that share experts for the slowest of them: steps of each begin "
            "and end by themselves, as if all had its number of tokens; replicas without requests "
            "give their experts' time away"
        )
    if len(scenario.pools) > 1:
        notes.append(
            "overlap of a prefill with the copy of its keys and values: the copy begins when the "
            "prefill has ended, at the full rate of one link per prefill replica"
        )
    if scenario.host_gb:
        notes.append("the cost of copies to host memory, which are taken to be free")
    if scenario.groups > 1:
        notes.append(
            f"routing between the {scenario.groups} groups: each router has every "
            f"{scenario.groups}th request and knows its own replicas only"
        )
    return notes
