"""Runs the groups of a scenario: one in this process, several in processes side by side.

In: a Scenario. Out: a GroupResult of each.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import msgspec

from jengine.capacity.simulation.group import run_group
from jengine.capacity.simulation.results import GroupResult
from jengine.capacity.simulation.scenario import Scenario
from jengine.errors import EngineDead

LAST_WORDS = 2000  # characters of what a process that failed said


def run_groups(scenario: Scenario) -> list[GroupResult]:
    """Simulate all groups, as many at a time as there are cores. Returns results in order."""
    if scenario.groups == 1:
        return [run_group(scenario, 0)]
    given = msgspec.json.encode(scenario)
    with ThreadPoolExecutor(min(scenario.groups, os.cpu_count() or 1)) as threads:
        return list(threads.map(lambda part: run_apart(given, part), range(scenario.groups)))


def run_apart(given: bytes, part: int) -> GroupResult:
    """Simulate one group in a separate process."""
    command = [sys.executable, "-m", "jengine.capacity.simulation.group", str(part)]
    done = subprocess.run(command, input=given, capture_output=True, check=False)  # noqa: S603
    if done.returncode:
        words = done.stderr.decode(errors="replace")[-LAST_WORDS:]
        raise EngineDead(f"group {part} of the simulation ended with {done.returncode}: {words}")
    return msgspec.msgpack.decode(done.stdout, type=GroupResult)
