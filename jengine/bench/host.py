"""Host time of a step: schedule, pack and commit, with an executor that only packs.

No model and no device work, so what is measured is Python.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jengine.bench.surroundings import surroundings
from jengine.config import CacheConfig, CacheGroup, CacheSpec, ScheduleConfig
from jengine.engine.core import EngineCore
from jengine.executor.protocol import WorkerHealth
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.outputs import StepOutput
from jengine.plan import Plan, RowSampling
from jengine.request import WireRequest
from jengine.runner.buckets import Ladders, StepShapes, default_ladders
from jengine.runner.features import needed
from jengine.runner.packing import bucket_for, pack
from jengine.runner.plan_arrays import plan_arrays
from jengine.runner.rows import Rows
from jengine.scheduler.scheduler import Scheduler

VOCAB_SIZE = 32_000
PROMPT_LENGTH = 128
BLOCK_SIZE = 16


@dataclass
class PackedOnly:
    """A step that was packed, and whose sampled tokens all are 7."""

    plan: Plan
    samples: np.ndarray  # bool: entries that want tokens
    ready = True

    @property
    def has_left(self) -> bool:
        """There is one stage."""
        return True

    def result(self) -> StepOutput:
        """Nothing to wait for."""
        tokens = np.full((np.count_nonzero(self.samples), 1), 7, np.int32)
        return StepOutput.of_tokens(self.plan, tokens.tolist())


@dataclass
class PackingExecutor:
    """Does the host's part of a step and no other."""

    shapes: StepShapes
    ladders: Ladders
    rows: Rows
    seconds: list[float] = field(default_factory=list)

    def submit(self, plan: Plan) -> PackedOnly:
        """Pack the plan as the runner does."""
        began = time.perf_counter()
        self.rows.apply(plan)
        arrays = plan_arrays(plan)
        pack(arrays, self.rows, bucket_for(arrays, self.shapes, self.ladders), self.shapes)
        needed(arrays, self.rows, VOCAB_SIZE)
        self.seconds.append(time.perf_counter() - began)
        return PackedOnly(plan, arrays.samples)

    def update_weights(self, leaves: object) -> None:
        """There are none."""

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        """There are none."""
        return []

    def health(self) -> list[WorkerHealth]:
        """Of nobody."""
        return []

    def shutdown(self) -> None:
        """Nothing to give back."""


def build(running: int, steps: int) -> tuple[EngineCore, PackingExecutor]:
    """An engine core with room for everything, and `running` requests queued."""
    max_model_len = PROMPT_LENGTH + steps + 2 * BLOCK_SIZE
    group = CacheGroup(CacheSpec("full", 8, 128), tuple(range(32)))
    shapes = StepShapes((group,), BLOCK_SIZE, 32, running, max_model_len)
    blocks = running * shapes.max_pages + 1
    schedule = ScheduleConfig(running, 8192, max_model_len)
    scheduler = Scheduler(schedule, CacheCoordinator(CacheConfig((group,), BLOCK_SIZE, (blocks,))))
    ladders = default_ladders(running, 8192, max_model_len, BLOCK_SIZE, 32)
    executor = PackingExecutor(shapes, ladders, Rows(shapes))
    core = EngineCore(scheduler, executor, depth=1)
    for number in range(running):
        core.add(
            WireRequest(
                request_id=str(number),
                prompt_token_ids=[(number * 31 + i) % VOCAB_SIZE for i in range(PROMPT_LENGTH)],
                sampling=RowSampling(temperature=1.0, top_p=0.9, seed=number),
                max_tokens=steps + BLOCK_SIZE,
            )
        )
    return core, executor


def measure(running: int, steps: int) -> dict[str, float]:
    """Median milliseconds of pure decode steps with this many running requests."""
    core, executor = build(running, steps + 8)
    while core.scheduler.num_waiting:
        core.step()
    for _ in range(4):
        core.step()
    executor.seconds.clear()
    totals = []
    for _ in range(steps):
        began = time.perf_counter()
        core.step()
        totals.append(time.perf_counter() - began)
    total = statistics.median(totals) * 1e3
    packing = statistics.median(executor.seconds) * 1e3
    return {
        "running": running,
        "total_ms": round(total, 4),
        "schedule_and_commit_ms": round(total - packing, 4),
        "pack_ms": round(packing, 4),
        "us_per_request": round(total * 1e3 / running, 3),
    }


def measure_all(running: list[int], steps: int) -> dict[str, Any]:
    """A row for each number of running requests."""
    rows = [measure(count, steps) for count in running]
    return {"bench": "host", **surroundings(), "results": rows}


def printed(result: dict[str, Any]) -> str:
    """The same as a table."""
    lines = [f"{'rows':>6} {'schedule+commit ms':>19} {'pack ms':>8} {'total ms':>9} {'us/row':>7}"]
    lines += [
        f"{row['running']:>6} {row['schedule_and_commit_ms']:>19.3f} {row['pack_ms']:>8.3f} "
        f"{row['total_ms']:>9.3f} {row['us_per_request']:>7.2f}"
        for row in result["results"]
    ]
    return "\n".join(lines)
