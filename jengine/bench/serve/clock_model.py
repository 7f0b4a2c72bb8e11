"""An executor whose tokens encode the time of sampling, to measure the latency of the serving
path.

`--executor jengine.bench.serve.clock_model:ClockModel` puts it in place of a model, so that only
the path of a token is measured: from the end of a step to the client. In: plans. Out: for every row
the same token, the time in ticks, modulo the vocabulary. Must not import jax.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from jengine.config import CacheConfig, CacheGroup, CacheSpec, ScheduleConfig
from jengine.errors import RequestError
from jengine.executor.calls import encoded_answer
from jengine.executor.protocol import Capacity, EngineJob, WorkerHealth
from jengine.outputs import StepOutput
from jengine.plan import Plan, Wanted
from jengine.runner.report_types import DeviceMemory, ProgramCounts

IMPORT_PATH = "jengine.bench.serve.clock_model:ClockModel"
# A vocabulary of 4,096 then counts 0.8 s, far longer than any token takes.
TICK_NS = 200_000
# The first ids of a vocabulary, which are mostly special tokens.
FIRST = 260
BLOCK_SIZE = 16


def tokens_of_time(vocab_size: int) -> int:
    """Number of distinct time tokens."""
    return max(vocab_size - FIRST, 1)


def token_at(nanoseconds: int, vocab_size: int) -> int:
    """The token that encodes this time.monotonic_ns()."""
    return min(FIRST, vocab_size - 1) + nanoseconds // TICK_NS % tokens_of_time(vocab_size)


def age_ms(token: int, now: float, vocab_size: int) -> float:
    """Milliseconds from a token's encoded time to `now` (seconds of the same clock)."""
    ticks = int(now * 1e9) / TICK_NS - (token - min(FIRST, vocab_size - 1))
    return ticks % tokens_of_time(vocab_size) * TICK_NS / 1e6


class ClockOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options under `executor_options`."""

    step_seconds: float = 0.0  # that a step takes at least


class ClockStep:
    """Future of a step that ends at a given time."""

    has_left = True

    def __init__(self, rows: int, due: float, vocab_size: int) -> None:
        self._rows, self._due, self._vocab_size = rows, due, vocab_size

    @property
    def ready(self) -> bool:
        return time.monotonic() >= self._due

    def result(self) -> StepOutput:
        """Wait for the step's end; the token of every row encodes that end, even if read later."""
        if (left := self._due - time.monotonic()) > 0:
            time.sleep(left)
        token = token_at(round(self._due * 1e9), self._vocab_size)
        return StepOutput(np.full((self._rows, 1), token, np.int32))


class ClockModel:
    """The executor. Stateless per request, so without work per row."""

    def __init__(self, job: EngineJob) -> None:
        settings = job.settings
        options = msgspec.convert(job.options, ClockOptions, strict=False)
        self._step_seconds = options.step_seconds
        self._vocab_size = vocab_size_of(Path(settings["model"]))
        rows = settings.get("max_num_seqs") or 256
        length = settings.get("max_model_len") or 2048
        tokens = max(settings.get("max_num_batched_tokens") or 8192, rows + BLOCK_SIZE)
        blocks = rows * -(-length // BLOCK_SIZE) + 1
        group = CacheGroup(CacheSpec("full", 1, 8), (0,))
        cache = CacheConfig((group,), BLOCK_SIZE, (blocks,), enable_prefix_caching=False)
        schedule = ScheduleConfig(
            rows, tokens, length, prefill_tile=BLOCK_SIZE, vocab_size=self._vocab_size
        )
        self.capacity = Capacity(schedule, cache, 1, "cpu")
        self._last_step = -1
        self._last_due = 0.0

    @classmethod
    def start(cls, job: EngineJob) -> ClockModel:
        """Nothing to load."""
        return cls(job)

    def submit(self, plan: Plan) -> ClockStep:
        """Queue a step that begins when the previous one ends."""
        self._last_step = plan.step
        self._last_due = max(self._last_due, time.monotonic()) + self._step_seconds
        rows = sum(entry.wanted is Wanted.TOKENS for entry in plan.entries)
        return ClockStep(rows, self._last_due, self._vocab_size)

    def update_weights(self, values: Any) -> None:
        raise RequestError("a clock has no parameters to update.")

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        """Answer worker calls with fixed values."""
        memory = DeviceMemory("cpu", 1, 0, 0, 0, None, None)
        answers = {"programs": ProgramCounts(0, 0), "memory": memory}
        if method not in answers:
            raise RequestError(f"{method}: a clock only answers {', '.join(answers)}.")
        return [encoded_answer(answers[method])]

    def health(self) -> list[WorkerHealth]:
        return [WorkerHealth(0, "this process", self._last_step, 0.0)]

    def shutdown(self) -> None:
        """There is nothing to release."""


def vocab_size_of(folder: Path) -> int:
    """`vocab_size` in a model's config.json."""
    found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return int(found["vocab_size"])


def ages(tokens: Sequence[tuple[float, Sequence[int]]], vocab_size: int) -> list[float]:
    """Latency of each token in milliseconds, from (perf_counter at arrival, tokens of the
    chunk)."""
    # Both clocks count seconds; where they differ, it is by a constant.
    offset = time.monotonic() - time.perf_counter()
    return [age_ms(token, now + offset, vocab_size) for now, ids in tokens for token in ids]
