"""Requests with penalties, biases or masks share a pool of sampler state."""

from __future__ import annotations

from jengine.plan import RowSampling
from jengine.request import WireRequest
from tests.scheduler.scheduler_loop import Loop, make_wire

PENALISED = RowSampling(repetition_penalty=1.2)


def penalised(*names: str, prompt: int = 3) -> list[WireRequest]:
    return [make_wire(prompt, name, sampling=PENALISED) for name in names]


def taken(loop: Loop) -> list[int]:
    plan = loop.schedule()
    return [] if plan is None else [new.sampler_row for new in plan.new_rows]


def test_only_requests_that_adjust_logits_take_a_sampler_row() -> None:
    loop = Loop()
    loop.add(make_wire(3, "plain"), *penalised("a"), make_wire(3, "other"), *penalised("b"))
    assert taken(loop) == [0, 1, 0, 2]


def test_beyond_the_pool_requests_wait_in_line() -> None:
    loop = Loop(depth=0, max_adjusted_seqs=2)
    loop.add(*penalised("a", "b", "c"), make_wire(3, "behind"))
    assert taken(loop) == [1, 2]
    loop.commit()
    assert taken(loop) == [], "rows are free, sampler rows are not"
    loop.commit()
    loop.abort("a")
    assert taken(loop) == [1, 0], "the row that was given back, then the one that needs none"
    loop.commit()
    loop.drain()
    assert {len(loop.tokens[name]) for name in ("b", "c", "behind")} == {4}


def test_a_preempted_request_gives_its_sampler_row_back() -> None:
    # Four blocks beside the null block: two requests outgrow them.
    loop = Loop(depth=0, blocks=6, max_adjusted_seqs=2)
    loop.add(*(make_wire(6, name, sampling=PENALISED, max_tokens=8) for name in ("a", "b")))
    loop.drain()
    assert loop.scheduler.num_preemptions > 0
    starts = [new.sampler_row for plan in loop.plans for new in plan.new_rows]
    assert len(starts) > 2 and set(starts) <= {1, 2}
    loop.add(*penalised("c", "d"))
    assert sorted(taken(loop)) == [1, 2], "every row of the pool is free again"
