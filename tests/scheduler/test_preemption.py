"""Preemption by recompute: who loses its row, what it keeps, when it comes back."""

from __future__ import annotations

import pytest

from jengine.assembly.settings.args import EngineArgs
from jengine.errors import ConfigError, RequestError
from jengine.plan import NewBlocks
from jengine.request import Request
from jengine.scheduler.orders import Order
from jengine.scheduler.plan_builder import PlanBuilder
from tests.kvcache.cache_cases import FULL, sliding
from tests.scheduler.scheduler_loop import Loop, lengths, make_wire, rows, starts


def tight(**more):
    """Room for about one and a half of the requests used here."""
    return Loop(**{"blocks": 9, **more})


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
@pytest.mark.parametrize("prefix", [True, False])
def test_each_token_is_delivered_once_under_pressure(depth, prefix):
    loop = tight(depth=depth, prefix=prefix)
    wires = [make_wire(9, name, max_tokens=14) for name in "abc"]
    loop.add(*wires)
    loop.drain()
    assert loop.scheduler.num_preemptions > 0
    loop.assert_truth(*wires)


def test_the_last_running_request_gives_way():
    loop = tight()
    wires = [make_wire(13, name, max_tokens=14) for name in "ab"]
    loop.add(*wires)
    while not loop.scheduler.num_preemptions:
        loop.step()
    assert [request.request_id for request in loop.scheduler._requests.running] == ["a"]
    assert [request.request_id for request in loop.scheduler._requests.waiting] == ["b"]
    loop.drain()
    loop.assert_truth(*wires)
    assert list(loop.finals) == ["a", "b"]


def test_nothing_waiting_is_admitted_in_a_step_that_preempts():
    loop = tight()
    loop.add(*(make_wire(13, name, max_tokens=14) for name in "ab"))
    loop.step()
    loop.add(make_wire([1], "small", max_tokens=1))
    while not loop.scheduler.num_preemptions:
        plan = loop.step()
    assert plan.new_rows == []
    loop.drain()


def test_a_preempted_request_waits_for_its_tokens_in_flight():
    loop = Loop(depth=1)
    wire = make_wire(6, max_tokens=9)
    loop.add(wire)
    loop.schedule()
    loop.schedule()
    loop.scheduler.reset_prefix_cache(reset_running_requests=True)
    loop.commit()
    assert loop.schedule() is None, "one of its tokens is still in flight"
    loop.commit()
    plan = loop.schedule()
    assert plan.new_rows[0].token_ids == wire.prompt_token_ids + loop.tokens["r"]
    assert plan.released == [0] and len(loop.tokens["r"]) == 2
    loop.drain()
    loop.assert_truth(wire)


def test_others_pass_while_it_waits_and_it_keeps_its_place():
    loop = Loop(depth=1, max_num_seqs=1)
    wires = [make_wire(6, name, max_tokens=3) for name in "abc"]
    loop.add(*wires)
    loop.schedule()
    loop.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert loop.schedule().new_rows[0].token_ids == wires[1].prompt_token_ids
    assert [request.request_id for request in loop.scheduler._requests.waiting] == ["a", "c"]
    loop.drain()
    loop.assert_truth(*wires)


def test_all_that_are_passed_over_keep_their_order():
    loop = Loop(depth=1)
    wires = [make_wire(6, name) for name in "abc"]
    loop.add(*wires)
    loop.schedule()
    loop.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert loop.schedule() is None
    assert [request.request_id for request in loop.scheduler._requests.waiting] == list("abc")
    loop.drain()
    loop.assert_truth(*wires)


def test_a_resumed_request_looks_up_its_outputs_too():
    loop = Loop()
    wire = make_wire(6, max_tokens=20)
    loop.add(wire)
    for _ in range(9):
        loop.step()
    while loop.in_flight:
        loop.commit()
    (request,) = loop.scheduler._requests.running
    loop.scheduler._requests.preempt(request)
    plan = loop.step()
    assert starts(plan) == [12] and plan.num_decodes == 0
    assert loop.cache.stats.preempted_hits == 12
    loop.drain()
    assert loop.finals["r"].num_cached_tokens == 0, "that of the first admission"
    loop.assert_truth(wire)


def test_a_recomputed_single_token_is_not_a_decode():
    """The device no longer has that token: its row was released."""
    loop = Loop(depth=0)
    wire = make_wire(6, max_tokens=20)
    loop.add(wire)
    while len(loop.tokens["r"]) < 3:  # 9 known, 8 computed
        loop.step()
    (request,) = loop.scheduler._requests.running
    loop.scheduler._requests.preempt(request)
    plan = loop.step()
    assert (plan.num_decodes, starts(plan), lengths(plan)) == (0, [8], [1])
    loop.drain()
    loop.assert_truth(wire)


def test_a_preempted_request_may_finish_while_it_waits():
    loop = Loop()
    wire = make_wire(6, max_tokens=2)
    loop.add(wire)
    loop.schedule()
    loop.schedule()
    loop.scheduler.reset_prefix_cache(reset_running_requests=True)
    loop.commit()
    loop.commit()
    assert not loop.scheduler.has_unfinished and loop.scheduler.num_waiting == 0
    loop.assert_truth(wire)


def test_resetting_keeps_the_order_of_running_requests():
    loop = Loop()
    loop.add(*(make_wire(5, name, max_tokens=9) for name in "abcd"))
    loop.step()
    assert not loop.scheduler.reset_prefix_cache()
    assert loop.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert [request.request_id for request in loop.scheduler._requests.waiting] == list("abcd")
    loop.drain()


# Priorities


def test_urgent_requests_are_admitted_first_and_ties_follow_arrival():
    loop = Loop(policy="priority", max_num_seqs=1)
    loop.add(
        make_wire(3, "late", priority=1, arrival=2.0),
        make_wire(3, "early", priority=1, arrival=1.0),
        make_wire(3, "same as early", priority=1, arrival=1.0),
        make_wire(3, "urgent", priority=0, arrival=9.0),
    )
    loop.drain()
    assert list(loop.finals) == ["urgent", "early", "same as early", "late"]


def test_no_one_is_preempted_while_there_is_room():
    loop = Loop(policy="priority")
    loop.add(make_wire(5, "low", priority=5, max_tokens=9))
    loop.step()
    loop.add(make_wire(5, "high", priority=0, max_tokens=9))
    loop.drain()
    assert loop.scheduler.num_preemptions == 0


@pytest.mark.parametrize("depth", [0, 1])
def test_the_least_urgent_gives_way_and_its_planned_tokens_back(depth):
    """The victim stands first in the list, so it was planned in this very step already."""
    loop = tight(policy="priority", depth=depth, max_num_batched_tokens=16)
    low = make_wire(13, "low", priority=5, max_tokens=14)
    high = make_wire(13, "high", priority=0, max_tokens=14)
    loop.add(low)
    loop.step()
    loop.add(high)
    while not loop.scheduler.num_preemptions:
        plan = loop.step()
    assert [request.request_id for request in loop.scheduler._requests.running] == ["high"]
    assert rows(plan) == [1] and 0 in plan.released
    assert all(blocks.row == 1 for blocks in plan.new_blocks)
    loop.drain()
    loop.assert_truth(low, high)
    assert list(loop.finals) == ["high", "low"]


def test_preempting_an_earlier_request_skips_no_other():
    """All that remain and could run are in the plan of a step that preempts."""
    loop = Loop(policy="priority", blocks=11, depth=0)
    loop.add(make_wire(8, "victim", priority=9, max_tokens=20))
    loop.step()
    loop.add(*(make_wire(8, name, priority=1, max_tokens=12) for name in "abc"))
    while not loop.scheduler.num_preemptions:
        plan = loop.step()
    assert len(rows(plan)) == 3
    loop.drain()


def test_the_least_urgent_preempts_itself_and_the_others_go_on():
    loop = tight(policy="priority", depth=0)
    low = make_wire(15, "low", priority=5, max_tokens=14)
    high = make_wire(14, "high", priority=0, max_tokens=14)
    loop.add(low)
    loop.step()
    loop.add(high)
    while not loop.scheduler.num_preemptions:
        plan = loop.step()
    assert rows(plan) == [1]
    loop.drain()
    loop.assert_truth(low, high)


def test_what_was_planned_for_a_victim_is_neither_run_nor_found():
    """A chunk was planned and got blocks in this very step; no step computes it now."""
    loop = Loop(
        policy="priority", depth=0, blocks=13, max_num_batched_tokens=16,
        long_prefill_token_threshold=8,
    )  # fmt: skip
    low = make_wire(48, "low", priority=5, max_tokens=1)
    high = make_wire(7, "high", priority=0, max_tokens=3)
    loop.add(low)
    assert lengths(loop.step()) == [16]
    loop.add(high)
    assert lengths(loop.step()) == [8, 7]
    assert lengths(loop.step()) == [1, 8]
    plan = loop.step()  # 8 more of low, then high needs a block and none is left
    assert (rows(plan), lengths(plan), plan.released) == ([1], [1], [0])
    assert [blocks.row for blocks in plan.new_blocks] == [1]
    assert starts(loop.step()) == [32], "what was computed is found, what was only planned is not"
    loop.drain()
    loop.assert_truth(low, high)


def test_the_builder_takes_back_what_a_victim_would_have_cost():
    builder = PlanBuilder(12, 4)
    first, second = (Request(make_wire(9, name), 64, 0) for name in "ab")
    first.row, second.row = 0, 1
    builder.add_chunk(first, 5)
    builder.decodes.append(second)
    builder.budget -= 1
    builder.new_blocks = [NewBlocks(0, 0, 0, [1]), NewBlocks(1, 0, 0, [2])]
    assert builder.budget == 3
    builder.withdraw(first)
    assert builder.budget == 11 and [blocks.row for blocks in builder.new_blocks] == [1]
    builder.withdraw(second)
    assert builder.budget == 12 and not (builder.new_blocks or builder.chunks or builder.decodes)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_lone_request_waits_for_its_window_instead_of_starting_again(depth):
    loop = Loop(FULL, sliding(5), depth=depth, blocks=(30, 5), max_num_batched_tokens=8)
    wire = make_wire(40, max_tokens=20)
    loop.add(wire)
    loop.drain()
    loop.assert_truth(wire)
    assert loop.scheduler.num_preemptions == 0


# Orders of a caller's own


class ShortestFirst(Order):
    def arrived(self, request):
        if request.prompt_length == 13:
            raise ValueError("unlucky")
        return request.prompt_length


OWN = f"{__name__}:ShortestFirst"


def test_an_order_of_ones_own_says_who_runs_and_who_gives_way():
    loop = Loop(policy=OWN, max_num_seqs=1)
    loop.add(make_wire(9, "long"), make_wire(3, "short"), make_wire(3, "short too"))
    with pytest.raises(RequestError, match="no place for this request: ValueError: unlucky"):
        loop.scheduler.add(make_wire(13, "refused"))
    loop.drain()
    assert list(loop.finals) == ["short", "short too", "long"]
    loop = tight(policy=OWN, depth=0)
    long, short = make_wire(15, "long", max_tokens=14), make_wire(14, "short", max_tokens=14)
    loop.add(long)
    loop.step()
    loop.add(short)
    while not loop.scheduler.num_preemptions:
        plan = loop.step()
    assert rows(plan) == [1], "first come first served would preempt the second"
    loop.drain()
    loop.assert_truth(long, short)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("priorty", "expected 'fcfs', 'priority' or .* Did you mean 'priority'"),
        ("nowhere.at_all:Order", "cannot be imported: No module named 'nowhere'"),
        ("jengine.scheduler.orders:Ordered", "cannot be imported: .* has no attribute 'Ordered'"),
        ("jengine.scheduler.queue:WaitingQueue", "WaitingQueue' is no class derived from"),
        ("jengine.scheduler.orders:Order", "abstract"),
    ],
)
def test_what_is_no_order_is_refused(policy, words):
    with pytest.raises(ConfigError, match=words):
        EngineArgs.checked("LLM", model="x", scheduling_policy=policy)
