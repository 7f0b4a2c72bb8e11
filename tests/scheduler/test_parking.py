"""Parked requests: nothing looks at them until their key is woken, and the order stays."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from threading import Thread
from typing import Any

import pytest

from jengine.errors import RequestError
from jengine.plan import Plan
from jengine.request import Request
from jengine.scheduler.adapter_slots import MOST_OVERTAKING
from jengine.scheduler.orders import order_of
from jengine.scheduler.planning import MOST_PARKED
from jengine.scheduler.queue import LaneEntry, Polled, WaitingQueue
from tests.kvcache.cache_cases import FULL, recurrent
from tests.scheduler.scheduler_loop import Loop, make_wire


def made(number: int, priority: int = 0) -> Request:
    return Request(make_wire([1], str(number), priority=priority), 64, number)


class Told:
    """Requests wait for what their name's last digit is told to have."""

    def __init__(self, wake: Callable[[Hashable], None]) -> None:
        self.wake = wake
        self.there: set[str] = set()
        self.broken: set[str] = set()
        self.asked: list[str] = []

    def awaited(self, request: Request) -> str | None:
        key = request.request_id[-1]
        self.asked.append(request.request_id)
        if key in self.broken:
            raise RequestError(f"{key} cannot be made.")
        return None if key in self.there or not key.isdigit() else key

    def tell(self, key: str) -> None:
        self.there.add(key)
        self.wake(key)


def told(**settings: Any) -> tuple[Loop, Told]:
    made_gates: list[Told] = []

    def make(wake: Callable[[Hashable], None]) -> Told:
        made_gates.append(Told(wake))
        return made_gates[0]

    loop = Loop(gates=[make], **settings)
    return loop, made_gates[0]


def begun(plan: Plan | None) -> int:
    return 0 if plan is None else len(plan.new_rows)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_any_use_of_the_queue_keeps_the_order_and_leaves_nothing(policy: Any) -> None:
    source = random.Random(policy)
    queue = WaitingQueue(order_of(policy))
    orders: dict[Request, Any] = {}
    keys: dict[Request, Hashable] = {}  # what each waited for when it was asked last
    closed: set[Hashable] = set()
    for number in range(1000):
        free = sorted((one for one in orders if keys[one] not in closed), key=orders.__getitem__)
        assert list(queue.ahead(9)) == free[:9]
        assert queue.peek() is (free[0] if free else None)
        assert (len(queue), queue.num_parked) == (len(orders), len(orders) - len(free))
        assert list(queue) == sorted(orders, key=orders.__getitem__)
        turn = source.random()
        if turn < 0.35:
            new = made(number, source.randrange(3))
            restored = source.random() < 0.2
            (queue.restore if restored else queue.push)(new)
            fcfs = -number if restored else number
            orders[new] = new.urgency if policy == "priority" else fcfs
            keys[new] = None
        elif turn < 0.55 and free:
            key = source.choice([1, 2, Polled(3), ("many", number)])
            moves = keys[free[0]] != key
            assert queue.park(free[0], key) == moves
            keys[free[0]] = key
            closed.add(key)
        elif turn < 0.65 and closed:
            queue.wake(source.choice(sorted(closed, key=str)))
        elif turn < 0.8 and orders:
            gone = source.choice(list(orders))
            queue.remove(gone)
            del orders[gone], keys[gone]
        else:
            closed -= set(queue._woken)
            closed = {key for key in closed if not isinstance(key, Polled)}
            queue.hear()
        closed &= set(keys.values())
    for one in list(orders):
        queue.remove(one)
    assert_empty(queue)


def assert_empty(queue: WaitingQueue) -> None:
    assert not queue._places and not queue._lanes and queue.num_parked == 0
    assert all(len(line._heads) <= 16 for line in (queue._open, *queue._parked.values()))


def test_woken_requests_take_their_places() -> None:
    loop, gate = told(max_num_seqs=2)
    loop.add(*(make_wire(4, name, max_tokens=2) for name in ("a1", "b2", "c1", "d", "e", "f1")))
    plan = loop.schedule()
    assert plan is not None and begun(plan) == 2, "d and e pass"
    assert (loop.scheduler.num_waiting, loop.scheduler._requests.waiting.num_parked) == (4, 4)
    gate.asked.clear()
    loop.schedule()
    assert gate.asked == []
    Thread(target=gate.tell, args=("1",)).start()
    while loop.scheduler.has_unfinished and len(loop.finals) < 5:
        loop.step()
    assert list(loop.finals) == ["d", "e", "a1", "c1", "f1"]
    gate.tell("2")
    loop.drain()
    assert_empty(loop.scheduler._requests.waiting)


def test_a_request_that_a_gate_refuses_for_good_ends_alone() -> None:
    loop, gate = told()
    loop.add(*(make_wire(4, name) for name in ("a1", "b1", "c2", "d")))
    loop.schedule()
    gate.broken.add("1")
    gate.wake("1")
    loop.schedule()
    failed = loop.scheduler.take_failed()
    assert [(one.request_id, one.finish_reason) for one in failed] == [
        ("a1", "error"),
        ("b1", "error"),
    ]
    assert failed[0].message == "1 cannot be made." and loop.scheduler.take_failed() == []
    gate.tell("2")
    loop.drain()
    assert set(loop.finals) == {"c2", "d"}


@pytest.mark.parametrize("count", [100, 3000])
def test_a_step_looks_at_a_bounded_number_of_requests(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, gate = told(max_num_seqs=2)
    work: list[int] = []
    less = LaneEntry.__lt__
    monkeypatch.setattr(LaneEntry, "__lt__", lambda a, b: work.append(1) or less(a, b))
    loop.add(*(make_wire(4, f"{number}x1", max_tokens=9) for number in range(count)))
    while loop.scheduler._requests.waiting.num_parked < count:
        gate.asked.clear()
        assert loop.schedule() is None
        assert len(gate.asked) <= MOST_PARKED
    work.clear()
    gate.asked.clear()
    for _ in range(10):
        loop.schedule()
    assert (work, gate.asked) == ([], [])
    gate.wake("1")
    loop.schedule()
    assert gate.asked == ["0x1"] and len(work) < 60, "the first closes the key again"
    work.clear()
    for number in range(count):
        loop.abort(f"{number}x1")
    assert len(work) < 60 * count
    assert_empty(loop.scheduler._requests.waiting)


def test_requests_that_share_a_prefix_of_states_wait_as_one() -> None:
    groups = (FULL, recurrent(8))
    settings = {"max_num_batched_tokens": 24, "long_prefill_token_threshold": 8}
    loop = Loop(*groups, blocks=(65, 40), max_num_seqs=4, **settings)
    looked: list[str] = []
    scans: list[int] = []  # keys of longer prefixes that were looked for
    pool = loop.cache.groups[1].pool  # type: ignore[attr-defined]
    finds_any = pool.finds_any
    pool.finds_any = lambda keys: scans.append(len(keys)) or finds_any(keys)
    writer = loop.cache.prefix_writer
    loop.cache.prefix_writer = lambda one: looked.append(one.request_id) or writer(one)  # type: ignore[method-assign]
    shared = [n % 7 for n in range(40)]
    wires = [make_wire([*shared, n], f"r{n}", max_tokens=2) for n in range(60)]
    loop.add(*wires)
    most = 0
    while loop.scheduler.has_unfinished or loop.in_flight:
        looked.clear()
        scans.clear()
        loop.step()
        most = max(most, len(looked))
        assert len(scans) <= 1, "one answer for all that share the prefix"
    assert most <= MOST_PARKED + 5
    loop.assert_truth(*wires)
    cached = [loop.finals[wire.request_id].num_cached_tokens for wire in wires]
    assert cached[1:] == [40] * 59, "all but the first begin with the state behind the prefix"


def adapters_loop(**settings: Any) -> Loop:
    return Loop(max_loras=1, max_num_seqs=4, blocks=200, **settings)


def test_an_adapter_gets_its_turn_while_others_renew_themselves() -> None:
    loop, rows = adapters_loop(), 4
    streams = [make_wire(4, f"a{n}", max_tokens=3 + n % 4, adapter="a") for n in range(300)]
    loop.add(*streams[:rows])
    loop.schedule()
    late = [make_wire(4, f"{name}{n}", max_tokens=2, adapter=name) for name in "bc" for n in (0, 1)]
    loop.add(*late)
    upcoming = iter(streams[rows:])
    started = list(loop.tokens)
    while not {wire.request_id for wire in late} <= loop.finals.keys():
        while loop.scheduler.num_running + loop.scheduler.num_waiting < 8:
            loop.add(next(upcoming))
        loop.step()
        started = list(loop.tokens)
    ended = list(loop.finals)
    before = ended.index("b0")
    assert before <= rows + MOST_OVERTAKING * rows
    assert sorted(ended[before : before + 2]) == ["b0", "b1"]
    assert ended.index("c0") <= before + 2 + 2 * (MOST_OVERTAKING + 1) * rows
    assert len(started) < 300
    loop.drain()
    assert_empty(loop.scheduler._requests.waiting)


def test_an_adapter_whose_requests_are_aborted_gives_its_turn_back() -> None:
    loop = adapters_loop()
    loop.add(*(make_wire(4, f"a{n}", max_tokens=2 + n, adapter="a") for n in range(4)))
    loop.schedule()
    loop.add(make_wire(4, "b", adapter="b"))
    numbers = iter(range(4, 300))
    turns = loop.scheduler._adapters
    while not turns._leaving:
        while loop.scheduler.num_waiting < 3:
            loop.add(make_wire(4, f"a{next(numbers)}", max_tokens=4, adapter="a"))
        loop.step()
    loop.add(make_wire(4, "last", adapter="a"))
    loop.abort("b")
    loop.drain()
    assert loop.finals["last"].finish_reason == "length"
    assert_empty(loop.scheduler._requests.waiting)


@pytest.mark.parametrize("count", [50, 2000])
def test_requests_for_adapters_without_a_slot_cost_a_step_nothing(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = adapters_loop()
    loop.add(make_wire(4, "a", max_tokens=50, adapter="a"))
    loop.schedule()
    work: list[int] = []
    less = LaneEntry.__lt__
    monkeypatch.setattr(LaneEntry, "__lt__", lambda a, b: work.append(1) or less(a, b))
    for number in range(count):
        loop.add(make_wire(4, f"b{number}", adapter=f"b{number % 7}" if number % 2 else "b"))
    assert loop.scheduler._requests.waiting.num_parked == count, "parked as they arrive"
    work.clear()
    for _ in range(10):
        loop.step()
    assert len(work) <= 40
    loop.abort("a")
    work.clear()
    loop.step()
    assert loop.scheduler.num_running == 4 and len(work) < 200
