"""Transfers of plans that are in the stages of a pipeline: cases that random ones seldom meet."""

from __future__ import annotations

import pytest

from jengine.scheduler.tiered_transfers import TieredTransfers
from tests.scheduler.scheduler_loop import Loop, make_wire
from tests.scheduler.staged_executor import StagedExecutor
from tests.scheduler.test_transfers_machine import FarAway

STAGES = 3


def staged_loop(stored: dict, *, blocks: int, most_loads: int = 64) -> Loop:
    loop = Loop(
        depth=STAGES, spacing=STAGES, blocks=blocks, max_model_len=32,
        transfers=lambda cache: TieredTransfers(
            cache, [40], most_loads, FarAway(stored, boasts=False)
        ),
    )  # fmt: skip
    loop.executor = StagedExecutor(loop.executor, STAGES, stored, lambda fetch: True)
    return loop


def test_what_an_error_has_forgotten_is_saved_nowhere() -> None:
    """The blocks of a forgotten plan belong to others when it leaves the last stage."""
    stored: dict = {}
    loop = staged_loop(stored, blocks=9)
    loop.add(make_wire([1] * 28, "old", max_tokens=1))
    plan = loop.schedule()
    assert plan is not None and plan.transfers is not None
    forgotten = {key for copies in plan.transfers.saves for key in copies.keys}
    assert len(forgotten) == 7
    for delta in loop.scheduler.reset():
        loop.take(delta)
    loop.in_flight.clear()
    loop.scheduler.reset_prefix_cache()
    new = make_wire([2] * 28, "new", max_tokens=4)
    loop.add(new)
    loop.drain()
    loop.assert_truth(new)
    assert stored and not forgotten & set(stored)


@pytest.mark.parametrize("steps", range(1, 8))
def test_a_load_waits_for_plans_that_write_freed_blocks(steps: int) -> None:
    """An aborted request's blocks are loaded while later stages still run its plans."""
    loop = staged_loop({}, blocks=9)
    first = make_wire([1] * 17, "first", max_tokens=1)
    loop.add(first)
    loop.drain()
    loop.add(make_wire([2] * 28, "evicts", max_tokens=1))
    loop.drain()
    loop.add(make_wire([3] * 17, "aborted", max_tokens=9))
    for _ in range(steps):
        loop.schedule()
    loop.abort("aborted")
    again = make_wire([1] * 17, "again", max_tokens=4)
    loop.add(again)
    loop.drain()
    loop.assert_truth(first, again)
    assert loop.transfers.loaded >= 4
