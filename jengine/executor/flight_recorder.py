"""Flight recorder: wraps an executor and keeps its last plans and outputs.

In: plans. Out: the wrapped executor's results. Writes a recording when a step fails or on demand;
bounded in steps and memory.

With `flight_recorder=FOLDER` recorded steps can be rerun: a plan is complete, so `jengine replay`
runs them on any engine with the same cache and compares token by token (`executor/replay.py`). Off
by default, since recordings hold prompts and answers.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jengine.errors import StepDropped, UnexpectedCompile
from jengine.executor.calls import encoded_answer
from jengine.executor.protocol import Executor, PendingOutput
from jengine.executor.read_step import ReadStep
from jengine.executor.recording import Origin, RecordedStep, Recording, write_recording
from jengine.outputs import StepOutput
from jengine.plan import Plan

logger = logging.getLogger(__name__)
WRITE = "write_recording"  # the call that is answered here, not by workers
MOST_BYTES = 64 * 2**20
# Estimated bytes of a step without what `bytes_of` counts.
STEP_BYTES = 2048


class FlightRecorder:
    """Wraps an executor and keeps its last `steps` plans and outputs."""

    def __init__(self, executor: Executor, origin: Origin, folder: Path, steps: int) -> None:
        self.executor = executor
        self.origin = origin
        self.folder = folder
        self.most_steps = steps
        self._steps: deque[tuple[int, RecordedStep]] = deque()  # with their estimated bytes
        self._bytes = 0
        self._dropped = 0
        self._written = 0
        self.health, self.shutdown = executor.health, executor.shutdown

    def submit(self, plan: Plan) -> PendingOutput:
        step = RecordedStep(plan)
        self._keep(step)
        try:
            return ReadStep(self.executor.submit(plan), partial(self._read, step))
        except Exception as error:
            self._failed(step, error)
            raise

    def _read(self, step: RecordedStep, pending: PendingOutput) -> StepOutput:
        """Wait for a step and keep its tokens or its error."""
        try:
            output = pending.result()
        except Exception as error:
            self._failed(step, error)
            raise
        step.tokens = np.asarray(output.tokens, np.int32).tobytes()
        return output

    def _keep(self, step: RecordedStep) -> None:
        size = bytes_of(step.plan)
        self._steps.append((size, step))
        self._bytes += size
        while self._is_full:
            self._bytes -= self._steps.popleft()[0]
            self._dropped += 1

    @property
    def _is_full(self) -> bool:
        """Whether a bound on steps or bytes is exceeded; the newest step is always kept."""
        too_many = len(self._steps) > self.most_steps or self._bytes > MOST_BYTES
        return too_many and len(self._steps) > 1

    def _failed(self, step: RecordedStep, error: Exception) -> None:
        """Write a recording after a failed step, unless strict mode refused a compile or an
        interrupt dropped it."""
        step.problem = f"{type(error).__name__}: {error}"
        if isinstance(error, (StepDropped, UnexpectedCompile)):
            return
        try:
            logger.error("A step failed. Its recording: %s", self.write(step.problem))
        except OSError as problem:  # not raised: the step's error is
            logger.error("A step failed, and its recording cannot be written: %s", problem)

    def write(self, reason: str) -> Path:
        """Write the kept steps and return the file's path."""
        self._written += 1
        path = self.folder / f"steps-{os.getpid()}-{id(self):x}-{self._written}.jengine"
        steps = [step for _, step in self._steps]
        write_recording(Recording(self.origin, reason, self._dropped, steps), path)
        return path

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        """Answer `write_recording` here, and forward every other call."""
        if method == WRITE:
            return [encoded_answer(str(self.write("it was asked for")))]
        return self.executor.call_workers(method, arguments)

    def update_weights(self, values: Any) -> None:
        """Replace the parameters and forget the kept steps, which could not be replayed with
        them."""
        self.executor.update_weights(values)
        self._dropped += len(self._steps)
        self._steps.clear()
        self._bytes = 0


def bytes_of(plan: Plan) -> int:
    """Estimated host memory of a kept plan and its tokens, with every byte string that grows with
    prompts, images or the vocabulary."""
    size = STEP_BYTES + 2 * len(plan.entries.table)
    if plan.masks is not None:
        size += len(plan.masks.words)
    for new in plan.new_rows:
        size += len(new.tokens) + len(new.embeds or b"")
        for span in new.media:
            size += len(span.rows)
    for span in plan.encode:
        size += len(span.values) + len(span.rows)
    return size
