"""A driver of Ray workers: `python -m tests.executor.ray_program SCENARIO FOLDER`. Says JSON lines.

JAX's platform in this process does not exist, so any use of a device here would fail.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.util import placement_group_table

from jengine import LLM
from jengine.errors import ConfigError, EngineDead
from tests.api.engines import answers, tiny_engine
from tests.api.few_requests import LONG, PARAMS, PROMPTS
from tests.lora import engines as adapted

Found = TypeVar("Found")

CPUS = 2
# Collectives of several processes need threads, however few cores there are.
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "NPROC": "16"}


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def engine(
    folder: Path,
    *,
    environment: dict[str, str] | None = None,
    cpus: float = 0.5,
    start: float = 120,
    **settings: Any,
) -> LLM:
    options = {
        "workers": 2,
        "cpus": cpus,
        "start": start,
        "environment": {**ENVIRONMENT, **(environment or {})},
    }
    return tiny_engine(
        folder,
        executor="ray",
        executor_options=options,
        multihost={"silence": 8, "meet": 120, "compare_every": 4},
        **{"max_model_len": 256, **settings},
    )


def left_over() -> list[str]:
    """Placement groups that are still there, and what is not free again."""
    groups = [group["state"] for group in placement_group_table().values()]
    found = [state for state in groups if state != "REMOVED"]
    missing = CPUS - ray.available_resources().get("CPU", 0)
    return [*found, f"{missing} CPUs"] if missing else found


def until_nothing_is(found: Callable[[], list[Found]]) -> list[Found]:
    """What is still found after some seconds at most: a busy machine needs time to end things."""
    ends = time.monotonic() + 60
    while found() and time.monotonic() < ends:
        time.sleep(0.1)
    return found()


def alive(processes: list[int]) -> list[int]:
    """Those that have not ended yet."""

    def runs(process: int) -> bool:
        try:
            status = Path(f"/proc/{process}/stat").read_text()
        except FileNotFoundError:
            return False
        return status.rpartition(")")[2].split()[0] != "Z"

    return [process for process in processes if runs(process)]


def processes(llm: LLM) -> list[int]:
    """The workers' processes."""
    return [int(worker.where.split()[-1]) for worker in llm.health()]


def same(folder: Path) -> None:
    """Everything that must work, then an engine that cannot be built, then nothing is left."""
    with engine(folder) as llm:
        workers = processes(llm)
        first = llm.generate(PROMPTS, PARAMS)
        say(
            tokens=answers(first),
            again=answers(llm.generate(PROMPTS, PARAMS)),
            logprobs=all(output.outputs[0].logprobs for output in first),
            hits=llm.stats().prefix_hits,
            programs=llm.stats().programs,
            ranks=[worker.rank for worker in llm.health(probe=True)],
            devices=[one.devices for one in llm.call_workers("memory")],
        )
    say(left=until_nothing_is(left_over), alive=until_nothing_is(partial(alive, workers)))
    say(
        model=refused(folder, max_model_len=5000),
        room=refused(folder, cpus=1.5, start=3),
        platform=refused(folder, environment={"JAX_PLATFORMS": "nowhere"}),
        before=until_nothing_is(left_over),
        slow=refused(folder, start=3),
        left=until_nothing_is(left_over),
    )


def adapting(folder: Path) -> None:
    """Adapters, which every worker reads and brings to its devices."""
    with engine(folder, **{**adapted.SETTINGS, "max_model_len": 256}) as llm:
        say(found=adapted.turns(llm, adapted.written_adapters(folder.parent)))


def refused(folder: Path, **given: Any) -> str:
    """What an engine that cannot be built says."""
    try:
        engine(folder, **given)
    except ConfigError as error:
        return str(error)
    raise AssertionError(f"an engine was built with {given}")


def killed(folder: Path) -> None:
    """Each worker is lost once, while requests run."""
    for rank in (1, 0):
        llm = engine(folder, variant="greedy")
        workers = processes(llm)
        began = 0.0
        try:
            for number, _ in enumerate(llm.stream(PROMPTS, LONG)):
                if number == 8:
                    began = time.monotonic()
                    os.kill(workers[rank], signal.SIGKILL)
        except EngineDead as error:
            seconds = time.monotonic() - began
            say(error=str(error), seconds=seconds)
        say(left=until_nothing_is(left_over), alive=until_nothing_is(partial(alive, workers)))
        llm.shutdown()


def main() -> None:
    scenario, folder = sys.argv[1:]
    ray.init(num_cpus=CPUS, include_dashboard=False, log_to_driver=False)
    try:
        {"same": same, "killed": killed, "adapting": adapting}[scenario](Path(folder))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
