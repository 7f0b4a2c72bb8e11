"""Wraps a runner and queues a plan's KV loads before its step and its saves after it.

In: plans. Out: steps whose outputs say which fetches have ended. Copies run in the order of the
devices' queue, so a step sees earlier loads, and a save has the contents after its plan's step,
whatever later steps write. In a pipeline the later stages of a plan run after the first stages of
its successors: saves wait until their plan has left the last stage, and plans in flight are drained
before a load, since they may still write blocks that were freed meanwhile.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from jengine.connectors.protocol import WorkerHalf
from jengine.outputs import StepOutput
from jengine.plan import BlockCopies, Plan
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.runner import PlanRunner, StepHandle
from jengine.runner.transfers.device_blocks import (
    COUNTS,
    BlockPrograms,
    group_arrays,
    parts,
    programs_of,
    use_arrays,
)
from jengine.runner.transfers.host_copies import HostCopies
from jengine.runner.transfers.host_memory import HostMemory, on_host

# Seconds that a plan without a step waits for fetches.
REST = 5e-3
MEASURED = 3  # timed loads, of which the fastest counts
NO_TOKENS = np.zeros((0, 1), np.int32)


class TransferStep:
    """Future of a step with its saves, and the fetches completed when it was queued. `step` is None
    for a plan without a step."""

    __slots__ = ("_done", "_queue", "_saves", "_step")

    def __init__(
        self,
        step: StepHandle | None,
        saves: WaitingSaves | None,
        queue: SaveQueue,
        done: dict[int, bool],
    ) -> None:
        self._step = step
        self._saves = saves
        self._queue = queue
        self._done = done

    @property
    def ready(self) -> bool:
        return self._step is None or self._step.ready

    @property
    def has_left(self) -> bool:
        saved = self._saves is None or self._saves.is_settled
        return saved and (self._step is None or self._step.has_left)

    def result(self) -> StepOutput:
        """Wait for the step, queuing its saves first if they are not yet."""
        output = StepOutput(NO_TOKENS) if self._step is None else self._step.result()
        saves = self._saves
        if saves is not None and not saves.is_settled:
            if saves.after is not None and not saves.may_run:
                saves.after.result()
            self._queue.run()
        return output._replace(transfers_done=self._done)


class TransferRunner:
    def __init__(
        self, runner: PlanRunner, programs: Sequence[BlockPrograms], copies: HostCopies
    ) -> None:
        self.loaded: LoadedModel = runner.loaded
        self._runner = runner
        self._programs = programs
        self._copies = copies
        self._saves = SaveQueue(self._save)
        self._last: StepHandle | None = None  # the last step, if not through the pipeline
        self.loaded.closing.append(copies.close)

    def submit(self, plan: Plan) -> TransferStep:
        """Queue the plan's loads, step and saves."""
        transfers, copies = plan.transfers, self._copies
        if transfers is not None:
            if transfers.reset:
                self._saves.drop()
                copies.reset()
            if transfers.loads:
                self.drain()
            for loads in transfers.loads:
                self._load(loads)
        runs = plan.runs_step
        step = self._runner.submit(plan) if runs else None
        if step is not None:
            self._last = None if step.has_left else step
        self._saves.run()
        saves = None
        if transfers is not None:
            copies.tidy()
            if transfers.saves:
                saves = self._saves.add(self._last, transfers.saves)
            copies.fetch(transfers.fetches)
        return TransferStep(step, saves, self._saves, copies.ended(0.0 if runs else REST))

    def drain(self) -> None:
        """Queue all steps and saves that submitted plans still need."""
        self._runner.drain()
        self._saves.run()

    def update_parameters(self, values: Mapping[str, jax.Array]) -> None:
        self._runner.update_parameters(values)
        self._saves.run()

    def warm_up(self) -> None:
        """Compile the block programs, by rewriting the null blocks with their own contents."""
        for group, programs in enumerate(self._programs):
            for count in COUNTS:
                arrays = group_arrays(self.loaded, group)
                values = programs.read(arrays, [0] * count)
                use_arrays(self.loaded, group, programs.write(arrays, [0], values))

    def load_seconds(self) -> tuple[float, ...]:
        """Measured seconds per block, per group, of host-to-device loads in large batches.

        Loads the null block; every program must be compiled, and slots must be unused.
        """
        return tuple(
            min(self._timed_load(group) for _ in range(MEASURED))
            for group in range(len(self._programs))
        )

    def _timed_load(self, group: int) -> float:
        arrays = group_arrays(self.loaded, group)
        count = self._copies.num_slots(group, most=COUNTS[2])
        blocks, slots = [0] * count, list(range(count))
        self._copies.keep(group, slots, on_host(self._programs[group].read(arrays, blocks)))
        jax.block_until_ready(arrays)
        began = time.perf_counter()
        values = self._copies.staged(group, slots)
        arrays = self._programs[group].write(arrays, blocks, values)
        jax.block_until_ready(arrays)
        use_arrays(self.loaded, group, arrays)
        return (time.perf_counter() - began) / count

    def _load(self, copies: BlockCopies) -> None:
        self._copies.wait_for(copies.group, copies.slots)
        programs = self._programs[copies.group]
        for begin, end in parts(copies.blocks):
            values = self._copies.staged(copies.group, copies.slots[begin:end])
            arrays = group_arrays(self.loaded, copies.group)
            use_arrays(
                self.loaded, copies.group, programs.write(arrays, copies.blocks[begin:end], values)
            )

    def _save(self, copies: BlockCopies) -> None:
        programs = self._programs[copies.group]
        for begin, end in parts(copies.blocks):
            arrays = programs.read(
                group_arrays(self.loaded, copies.group), copies.blocks[begin:end]
            )
            own = BlockCopies(
                copies.group,
                copies.blocks[begin:end],
                copies.slots[begin:end],
                copies.keys[begin:end],
            )
            self._copies.save(own, on_host(arrays))


def with_transfers(
    runner: PlanRunner, slots: Sequence[int], far: WorkerHalf | None
) -> TransferRunner:
    """Wrap the runner, with this many host-memory slots per group. `far`: the connector, if any."""
    programs = programs_of(runner.loaded)
    memories = [HostMemory(own, count) for own, count in zip(programs, slots, strict=True)]
    return TransferRunner(runner, programs, HostCopies(memories, far))


@dataclass
class WaitingSaves:
    """The saves of one plan."""

    after: StepHandle | None  # the step to wait for: the plan's, or the last before; None: none
    copies: Sequence[BlockCopies]
    is_settled: bool = False  # queued, or dropped

    @property
    def may_run(self) -> bool:
        """Whether all programs that write the blocks are queued."""
        return self.after is None or self.after.has_left


class SaveQueue:
    """Pending saves of plans in the pipeline; without a pipeline nothing waits.

    A plan's blocks are pinned until it is committed, which is after its saves are queued: no later
    plan writes the blocks in between.
    """

    def __init__(self, save: Callable[[BlockCopies], None]) -> None:
        self._save = save
        self._waiting: deque[WaitingSaves] = deque()

    def add(self, after: StepHandle | None, copies: Sequence[BlockCopies]) -> WaitingSaves:
        """Queue these copies once the step `after` has left the last stage."""
        added = WaitingSaves(after, copies)
        self._waiting.append(added)
        self.run()
        return added

    def run(self) -> None:
        """Queue the copies whose steps are queued through the last stage."""
        while self._waiting and self._waiting[0].may_run:
            saves = self._waiting.popleft()
            for copies in saves.copies:
                self._save(copies)
            saves.is_settled = True

    def drop(self) -> None:
        """Discard pending saves after a reset, which unpins their blocks."""
        while self._waiting:
            self._waiting.popleft().is_settled = True
