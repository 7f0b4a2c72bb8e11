"""Plans with copies, run by stages that are steps apart, leave what they leave in one stage."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from jengine.outputs import StepOutput
from jengine.plan import NO_ENTRIES, BlockCopies, Entries, Entry, Fetch, Plan, Transfers
from jengine.runner.transfers.transfer_runner import TransferStep
from tests.scheduler.staged_executor import ScriptedTransferRunner, StagedRunner, StagedStep

BLOCKS, SLOTS = 4, 3
Writes = Mapping[int, tuple[int, int]]  # block -> content: the plan and the block


class Stages(StagedRunner):
    """A runner of so many stages and what copies their blocks, in plain dictionaries."""

    def __init__(self, count: int) -> None:
        self.queued = 0  # steps and copies
        self.blocks: list[dict[int, Any]] = [{} for _ in range(count)]
        self.slots: list[dict[int, Any]] = [{} for _ in range(count)]
        self.far: list[dict[bytes, Any]] = [{} for _ in range(count)]
        self.writes: dict[int, Writes] = {}  # of the plans that will come
        super().__init__([partial(self._run, blocks) for blocks in self.blocks])

    def _run(self, blocks: dict[int, Any], plan: Plan) -> StepOutput:
        blocks.update(self.writes[plan.step])
        return StepOutput(np.zeros((0, 1), np.int32))

    def _advance(self, entering: StagedStep | None = None) -> None:
        super()._advance(entering)
        self.queued += 1

    def reset(self) -> None:
        for slots in self.slots:
            slots.clear()

    def load(self, copies: BlockCopies) -> None:
        self.queued += 1
        for blocks, slots in zip(self.blocks, self.slots, strict=True):
            for block, slot in zip(copies.blocks, copies.slots, strict=True):
                blocks[block] = slots[slot]

    def save(self, copies: BlockCopies) -> None:
        self.queued += 1
        for blocks, slots, far in zip(self.blocks, self.slots, self.far, strict=True):
            for block, slot, key in zip(copies.blocks, copies.slots, copies.keys, strict=True):
                slots[slot] = far[key] = blocks.get(block)

    def fetch(self, fetches: Sequence[Fetch]) -> None:
        assert not fetches

    def ended(self, wait: float) -> dict[int, bool]:
        return {}

    def tidy(self) -> None:
        pass

    def close(self) -> None:
        pass


class Both:
    """The same plans for one stage and for several, as a scheduler may make them: what a plan saves
    is pinned until it is read, other blocks are anybody's at any time."""

    def __init__(self, count: int, data: st.DataObject | None = None) -> None:
        self.data = data
        self.one, self.staged = Stages(1), Stages(count)
        self.runners = [
            ScriptedTransferRunner(stages, stages) for stages in (self.one, self.staged)
        ]
        self.in_flight: deque[tuple[list[TransferStep], set[int], set[int]]] = deque()
        self.step = 0

    def some(self, numbers: Sequence[int], most: int = 2) -> list[int]:
        if not numbers:
            return []
        assert self.data is not None, "nothing is drawn"
        return self.data.draw(st.lists(st.sampled_from(numbers), unique=True, max_size=most))

    def plan(self, *, resets: bool) -> None:
        if resets:
            self.in_flight.clear()
        pinned = {block for _, blocks, _ in self.in_flight for block in blocks}
        filling = {slot for _, _, slots in self.in_flight for slot in slots}
        filled = [] if resets else sorted(self.one.slots[0])
        free = [block for block in range(BLOCKS) if block not in pinned]
        loads = list(zip(self.some(free), self.some(filled), strict=False))
        loaded, read = {block for block, _ in loads}, {slot for _, slot in loads}
        written = self.some([block for block in free if block not in loaded], BLOCKS)
        open_slots = [slot for slot in range(SLOTS) if slot not in filling | read]
        known = sorted({*self.one.blocks[0], *written, *loaded})
        saves = list(zip(self.some(known), self.some(open_slots), strict=False))
        self.submit(written, loads, saves, resets=resets)

    def submit(
        self, written: list[int], loads: list[tuple[int, int]], saves: list[tuple[int, int]],
        *, resets: bool,
    ) -> None:  # fmt: skip
        self.step += 1
        for stages in (self.one, self.staged):
            stages.writes[self.step] = {block: (self.step, block) for block in written}
        keys = [b"%d %d" % (self.step, block) for block, _ in saves]
        transfers = Transfers(
            [BlockCopies(0, *map(list, zip(*loads, strict=True)))] if loads else [],
            [BlockCopies(0, *map(list, zip(*saves, strict=True)), keys)] if saves else [],
            reset=resets,
        )  # fmt: skip
        entries = Entries.of([Entry(0, 0, 1)]) if written else NO_ENTRIES
        plan = Plan(self.step, entries, 0, transfers=transfers)
        steps = [runner.submit(plan) for runner in self.runners]
        assert steps[0].has_left, "in one stage everything is queued at once"
        self.in_flight.append((steps, {block for block, _ in saves}, {slot for _, slot in saves}))

    def read(self) -> None:
        (_, step), _, _ = self.in_flight.popleft()
        had_left, queued = step.has_left, self.staged.queued
        step.result()
        assert step.has_left
        assert not had_left or self.staged.queued == queued, "others would not have queued it"

    def check(self) -> None:
        for runner in self.runners:
            runner.drain()
        for blocks, slots, far in zip(
            self.staged.blocks, self.staged.slots, self.staged.far, strict=True
        ):
            assert blocks == self.one.blocks[0]
            assert slots == self.one.slots[0]
            assert far.items() <= self.one.far[0].items(), "a block under another one's name"


@settings(derandomize=True, deadline=None, max_examples=60)
@given(data=st.data(), count=st.integers(2, 4), depth=st.integers(0, 4))
def test_stages_leave_what_one_leaves(data: st.DataObject, count: int, depth: int) -> None:
    both = Both(count, data)
    for _ in range(data.draw(st.integers(1, 12))):
        both.plan(resets=data.draw(st.integers(0, 9)) == 9)
        while len(both.in_flight) > depth:
            both.read()
    both.check()


def test_a_later_stage_does_not_write_over_what_was_loaded() -> None:
    both = Both(2)
    both.submit([1], [], [(1, 0)], resets=False)
    both.read()
    both.submit([2], [], [], resets=False)  # whose request is aborted, so block 2 is free
    both.submit([3], [(2, 0)], [], resets=False)
    both.check()
    assert both.staged.blocks[1][2] == (1, 1)


def test_a_reset_forgets_the_saves_of_plans_in_the_stages() -> None:
    both = Both(3)
    both.submit([1], [], [(1, 0)], resets=False)
    both.submit([1], [], [], resets=True)  # which has block 1 for something else
    both.check()
    assert both.staged.far == [{}, {}, {}]


@pytest.mark.parametrize("runs", [True, False])
def test_saves_are_queued_when_their_step_has_left(runs: bool) -> None:
    """With the parameters of the stages, or with the plan that pushes theirs out of the last."""
    for parameters in (True, False):
        both = Both(2)
        both.submit([1], [], [], resets=False)
        both.submit([2] if runs else [], [], [(1, 0)], resets=False)
        (_, step), _, _ = both.in_flight[-1]
        assert not step.has_left
        if parameters:
            both.runners[1].update_parameters({})
        else:
            both.submit([3], [], [], resets=False)
        assert step.has_left and both.staged.slots[1] == {0: (1, 1)}
