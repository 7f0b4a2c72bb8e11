"""States of recurrent layers: one unit a request, and snapshots where chunks end."""

from __future__ import annotations

import pytest

from tests.kvcache.cache_cases import FULL, recurrent
from tests.scheduler.scheduler_loop import Loop, TruthProposer, lengths, make_wire


def test_chunks_end_at_the_last_snapshot_in_reach() -> None:
    loop = Loop(FULL, recurrent(8), blocks=(30, 9))
    loop.add(make_wire(21, "a"))
    assert lengths(loop.schedule()) == [16]
    assert lengths(loop.schedule()) == [5]
    without = Loop(FULL, recurrent(None), blocks=(30, 9))
    without.add(make_wire(21, "a"))
    assert lengths(without.schedule()) == [21]


def test_a_snapshot_is_found_from_the_next_step_on() -> None:
    """A step reads all states before it writes any."""
    loop = Loop(recurrent(8), blocks=9)
    prompt = make_wire(17, "a").prompt_token_ids
    loop.add(make_wire(prompt, "a"), make_wire(prompt, "b"))
    first = loop.schedule()
    # The second request waits for the state that the first one leaves after 16 tokens.
    assert lengths(first) == [16]
    assert lengths(loop.schedule()) == [1]
    loop.commit()
    second = loop.schedule()
    assert (lengths(second), second.entries.starts.tolist()) == ([1, 1], [17, 16])
    [units] = [new.blocks for new in second.new_blocks if new.row == second.new_rows[0].row]
    assert units[:3] == [0, 0, 0] and len({*units[3:]}) == 2  # the snapshot, and another unit
    loop.drain()
    loop.check()
    assert loop.cache.usage == 0


def test_a_request_holds_one_unit_and_one_more_after_a_snapshot() -> None:
    loop = Loop(recurrent(8), blocks=9, depth=0)
    loop.add(make_wire(7, "a", max_tokens=20))
    [group] = loop.cache.groups
    held = set()
    while loop.scheduler.has_unfinished:
        loop.step()
        held.add(group.num_used)
    assert held == {0, 1, 2}
    assert group.units_needed(recurrent(8).spec, 8, 4, 8) == 1
    assert group.units_needed(recurrent(8).spec, 9, 4, 8) == 2
    # What it has left is found by a prompt that goes on from its text.
    text = [*make_wire(7, "a").prompt_token_ids, *loop.tokens["a"]]
    loop.add(make_wire(text, "b"))
    plan = loop.schedule()
    assert plan.entries.starts.tolist() == [24]


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("wrong", [0, 2, 3])
def test_decodes_with_drafts_leave_snapshots(wrong: int, on_device: bool) -> None:
    """Drafts end at the next snapshot, and the tokens behind it change another unit, however many
    of the drafts before it count. What a drafter writes beyond them is in no state."""
    source = {"device_wrong": wrong} if on_device else {"proposer": TruthProposer(wrong)}
    loop = Loop(FULL, recurrent(8), blocks=(30, 9), most_drafts=3, **source)
    loop.add(make_wire(5, "a", max_tokens=24))
    loop.drain()
    assert any(length > 1 for plan in loop.plans for length in lengths(plan)[: plan.num_decodes])
    text = [*make_wire(5, "a").prompt_token_ids, *loop.tokens["a"]]
    for end in (26, 20, 13):
        loop.add(make_wire(text[:end], str(end)))
        plan = loop.schedule()
        assert plan.entries.starts.tolist() == [(end - 1) // 8 * 8]
        loop.drain()
    loop.check()
