"""Waiting queues and prompt scores on their own."""

from __future__ import annotations

import heapq
import random

import numpy as np
import pytest

from jengine.outputs import StepLogprobs
from jengine.request import Request
from jengine.scheduler.orders import order_of
from jengine.scheduler.queue import LaneEntry, WaitingQueue
from jengine.scheduler.side_results import PromptScores
from tests.scheduler.scheduler_loop import make_wire


def requests(urgencies):
    return [
        Request(make_wire(1, f"r{i}", priority=priority, arrival=arrival), 64, i)
        for i, (priority, arrival) in enumerate(urgencies)
    ]


def taken(queue):
    """All that may be asked for, taken out in their order."""
    found = []
    while (request := queue.peek()) is not None:
        queue.remove(request)
        found.append(request)
    return found


def test_arrival_order_with_restored_requests_first():
    first, second, third = requests([(0, 0.0)] * 3)
    queue = WaitingQueue(order_of("fcfs"))
    queue.push(first)
    queue.push(second)
    queue.restore(third)
    queue.remove(first)
    assert (len(queue), queue.peek(), list(queue)) == (2, third, [third, second])
    assert taken(queue) == [third, second]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_the_first_are_seen_without_taking_them(policy):
    queue = WaitingQueue(order_of(policy))
    held = requests([(0, 2.0), (0, 1.0), (0, 3.0), (0, 0.0)])
    for request in held:
        queue.push(request)
    queue.remove(held[3])
    expected = [queue.peek(), *list(queue)[1:]]
    assert [list(queue.ahead(count)) for count in (0, 2, 9)] == [[], expected[:2], expected]
    assert len(queue) == 3 and queue.peek() == expected[0]


def test_urgency_order_whatever_is_added_and_removed():
    source = random.Random(0)
    queue = WaitingQueue(order_of("priority"))
    held = requests([(source.randrange(3), source.randrange(3) * 1.0) for _ in range(60)])
    for request in held:
        (queue.push if source.random() < 0.5 else queue.restore)(request)
    for request in source.sample(held, 20):
        queue.remove(request)
        held.remove(request)
    held.sort(key=lambda request: request.urgency)
    assert list(queue) == held
    assert taken(queue) == held and len(queue) == 0


def chunk(start, length):
    positions = np.arange(start, start + length)
    values = np.stack([positions, positions + 0.5], 1).astype(np.float32)
    return StepLogprobs(values, values.astype(np.int32), positions.astype(np.int32))


def test_scores_may_come_in_any_order_and_twice():
    scores = PromptScores(8, -1)
    for start, length in ((4, 4), (0, 3), (1, 2)):
        scores.add(start, chunk(start, length))
        assert not scores.is_complete
    with pytest.raises(AssertionError, match=r"without a score: \[4\]"):
        scores.result()
    scores.add(3, chunk(3, 1))
    assert scores.result().rank.tolist() == list(range(7))
    assert scores.result().values[:, 1].tolist() == [i + 0.5 for i in range(7)]


def test_what_lies_behind_the_prompt_is_not_kept():
    scores = PromptScores(4, -1)
    scores.add(0, chunk(0, 4))
    scores.add(5, chunk(5, 2))
    assert scores.result().values.shape == (3, 2)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_the_work_of_removing_all_grows_with_their_number(policy, monkeypatch):
    """Counted in comparisons and in entries of rebuilt heaps, not in seconds."""
    count, work = 2000, []
    less, heapify = LaneEntry.__lt__, heapq.heapify
    monkeypatch.setattr(LaneEntry, "__lt__", lambda a, b: work.append(1) or less(a, b))
    monkeypatch.setattr(Request, "__eq__", lambda a, b: work.append(1) or a is b, raising=False)
    monkeypatch.setattr("heapq.heapify", lambda heap: work.extend(heap) or heapify(heap))
    queue = WaitingQueue(order_of(policy))
    held = requests([(i * 7919 % 100, 0.0) for i in range(count)])
    for request in held:
        queue.push(request)
    for request in reversed(held):
        queue.remove(request)
    assert len(queue) == 0 and list(queue) == []
    assert len(work) < 30 * count
