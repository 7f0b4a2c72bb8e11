"""Runs the groups of a scenario: few requests in this process, many in a process per core.

In: a Scenario. Out: a GroupResult of each.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from jengine.capacity.simulation.group import run_parts
from jengine.capacity.simulation.results import GroupResult
from jengine.capacity.simulation.scenario import Scenario
from jengine.errors import EngineDead

WORTH = 5000  # requests that take as long as starting a process
LAST_WORDS = 2000  # characters of what a process that failed said


def run_groups(scenario: Scenario) -> list[GroupResult]:
    """Simulate all groups. Returns results in order."""
    scenario = in_independent_groups(scenario)
    count = min(scenario.groups, os.cpu_count() or 1, -(-scenario.trace.requests // WORTH))
    if count == 1:
        return list(run_parts(scenario, range(scenario.groups)))
    given = msgspec.json.encode(scenario)
    shares = [range(first, scenario.groups, count) for first in range(count)]
    with ThreadPoolExecutor(count) as threads:
        done = list(threads.map(lambda parts: run_apart(given, parts), shares))
    return [done[part % count][part // count] for part in range(scenario.groups)]


def in_independent_groups(scenario: Scenario) -> Scenario:
    """Each replica a group where requests are given to them in turns, whatever happens: the outcome
    is that of one group, and arrivals at other replicas end no jump."""
    depends = scenario.failures or scenario.mtbf or scenario.autoscaling or scenario.csv
    if scenario.routing != "turns" or len(scenario.pools) > 1 or scenario.groups > 1 or depends:
        return scenario
    if scenario.trace.turns > 1:  # the next turn goes to whichever replica is next then
        return scenario
    return msgspec.structs.replace(scenario, groups=scenario.pools[0].replicas)


def run_apart(given: bytes, parts: Sequence[int]) -> list[GroupResult]:
    """Simulate some groups, one after the other, in a separate process."""
    words = map(str, parts)
    command = [sys.executable, "-m", "jengine.capacity.simulation.group", *words]
    done = subprocess.run(command, input=given, capture_output=True, check=False)  # noqa: S603
    if done.returncode:
        said = done.stderr.decode(errors="replace")[-LAST_WORDS:]
        raise EngineDead(
            f"groups {', '.join(map(str, parts))} of the simulation ended with "
            f"{done.returncode}: {said}"
        )
    return msgspec.msgpack.decode(done.stdout, type=list[GroupResult])
