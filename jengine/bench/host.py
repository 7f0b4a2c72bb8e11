"""Host overhead per step: scheduling, packing and committing, without running a model.

There is no model and no device work, so only Python is measured. Each number of requests is
measured with a short and with a long `max_model_len`, which should make no difference.
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
from jengine.runner.plans.needed_features import needed
from jengine.runner.plans.packing import bucket_for, pack
from jengine.runner.plans.rows import Rows
from jengine.runner.programs.block_tables import block_entries
from jengine.runner.variants.buckets import Ladders, StepShapes, default_ladders
from jengine.scheduler.scheduler import Scheduler

VOCAB_SIZE = 32_000
PROMPT_LENGTH = 128
BLOCK_SIZE = 16
LONG_CONTEXT = 131_072


@dataclass
class PackedOnly:
    """Future of a step that was packed but not run; every sampled token is 7."""

    plan: Plan
    ready = True

    @property
    def has_left(self) -> bool:
        return True

    def result(self) -> StepOutput:
        sampled = np.count_nonzero(self.plan.entries.wants_tokens)
        return StepOutput(np.full((sampled, 1), 7, np.int32))


class NoWorkers:
    """The executor methods that need neither a model nor workers."""

    def update_weights(self, values: object) -> None:
        """No weights are held."""

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        """There are no workers."""
        return []

    def health(self) -> list[WorkerHealth]:
        return []

    def shutdown(self) -> None:
        """There is nothing to release."""


@dataclass
class PackingExecutor(NoWorkers):
    """Packs plans as the runner does, without running them."""

    shapes: StepShapes
    ladders: Ladders
    rows: Rows
    seconds: list[float] = field(default_factory=list)
    packed_bytes: int = 0  # in the last step

    def submit(self, plan: Plan) -> PackedOnly:
        began = time.perf_counter()
        self.rows.apply(plan)
        needed(plan, self.rows, VOCAB_SIZE)
        bucket = bucket_for(plan, self.rows, self.ladders)
        new_blocks = block_entries(plan.new_blocks)
        packed = pack(plan, self.rows, bucket, self.shapes, new_blocks)
        self.packed_bytes = packed.buffer.nbytes
        self.seconds.append(time.perf_counter() - began)
        return PackedOnly(plan)


def build(running: int, steps: int, max_model_len: int) -> tuple[EngineCore, PackingExecutor]:
    """An engine core with a large enough cache, and `running` queued requests."""
    group = CacheGroup(CacheSpec("full", 8, 128), tuple(range(32)))
    shapes = StepShapes((group,), BLOCK_SIZE, 32, running, max_model_len)
    blocks = running * -(-shortest_context(steps) // BLOCK_SIZE) + 1
    schedule = ScheduleConfig(running, 8192, max_model_len)
    scheduler = Scheduler(schedule, CacheCoordinator(CacheConfig((group,), BLOCK_SIZE, (blocks,))))
    ladders = default_ladders(running, 8192, max_model_len, BLOCK_SIZE, 32)
    executor = PackingExecutor(shapes, ladders, Rows(shapes))
    core = EngineCore(scheduler, executor, depth=1)
    wires = [
        WireRequest(
            request_id=str(number),
            prompt_token_ids=[(number * 31 + i) % VOCAB_SIZE for i in range(PROMPT_LENGTH)],
            sampling=RowSampling(temperature=1.0, top_p=0.9, seed=number),
            max_tokens=steps + BLOCK_SIZE,
        )
        for number in range(running)
    ]
    for wire in wires:  # together, as the client does: where they are in memory counts
        core.add(wire)
    return core, executor


def shortest_context(steps: int) -> int:
    """The smallest max_model_len in which every request can run this many decode steps."""
    return PROMPT_LENGTH + steps + 2 * BLOCK_SIZE


def measure(running: int, steps: int, max_model_len: int | None = None) -> dict[str, float]:
    """Median milliseconds per decode step with this many running requests."""
    max_model_len = max_model_len or shortest_context(steps + 8)
    core, executor = build(running, steps + 8, max_model_len)
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
        "max_model_len": max_model_len,
        "total_ms": round(total, 4),
        "schedule_and_commit_ms": round(total - packing, 4),
        "pack_ms": round(packing, 4),
        "us_per_request": round(total * 1e3 / running, 3),
        "packed_bytes": executor.packed_bytes,
    }


def measure_all(running: list[int], steps: int) -> dict[str, Any]:
    """Per number of running requests, one row with a short and one with a long max_model_len."""
    contexts = (None, LONG_CONTEXT)
    rows = [measure(count, steps, context) for count in running for context in contexts]
    return {"bench": "host", **surroundings(), "results": rows}


def printed(result: dict[str, Any]) -> str:
    lines = [
        f"{'rows':>6} {'context':>8} {'schedule+commit ms':>19} {'pack ms':>8} {'total ms':>9} "
        f"{'us/row':>7} {'packed kB':>10}"
    ]
    # Results of earlier versions have neither a context nor the bytes.
    lines += [
        f"{row['running']:>6} {row.get('max_model_len', '-'):>8} "
        f"{row['schedule_and_commit_ms']:>19.3f} {row['pack_ms']:>8.3f} {row['total_ms']:>9.3f} "
        f"{row['us_per_request']:>7.2f} {row.get('packed_bytes', 0) / 1e3:>10.1f}"
        for row in result["results"]
    ]
    return "\n".join(lines)
