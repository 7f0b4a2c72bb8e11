"""Fetches that end in several processes, in any order: done when all have ended, never twice."""

from __future__ import annotations

from collections import deque

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from jengine.executor.multihost.executors import FetchTally
from jengine.plan import Fetch, Transfers

QUICK = settings(derandomize=True, deadline=None, max_examples=60, stateful_step_count=40)


def fetches(*numbers: int) -> list[Fetch]:
    return [Fetch(number, 0, number, b"key", "") for number in numbers]


def test_a_fetch_has_ended_when_the_last_process_says_so() -> None:
    tally = FetchTally([0, 1, 2])
    tally.began(Transfers(fetches=fetches(0, 1)))
    tally.ended(0, {0: True, 1: True})
    tally.ended(2, {0: True, 1: False})
    assert tally.is_waiting and tally.take() == {}
    tally.ended(1, {0: True, 1: True})
    assert not tally.is_waiting
    assert tally.take() == {0: True, 1: False}
    assert tally.take() == {}


def test_fetches_of_before_a_reset_count_for_nothing() -> None:
    tally = FetchTally([0, 1])
    tally.began(Transfers(fetches=fetches(0, 1)))
    tally.ended(0, {0: True, 1: True})
    tally.ended(1, {0: True})
    tally.began(Transfers(fetches=fetches(2), reset=True))
    tally.ended(1, {1: False, 2: True})
    assert tally.is_waiting and tally.take() == {}
    tally.ended(0, {2: True})
    assert tally.take() == {2: True}


class TallyMachine(RuleBasedStateMachine):
    """Processes that run plans at their own pace, and messages that take their time."""

    @initialize(ranks=st.integers(1, 4))
    def start(self, ranks):
        self.tally = FetchTally(range(ranks))
        self.plans = [deque() for _ in range(ranks)]  # of each process, not run yet
        self.running = [set() for _ in range(ranks)]  # fetches in progress there
        self.sent = [deque() for _ in range(ranks)]  # what it has said, on its way
        self.outcomes: dict[int, dict[int, bool]] = {}  # number -> process -> what it has said
        self.open: set[int] = set()  # begun since the last reset, and not reported
        self.next = 0

    @rule(count=st.integers(0, 3), reset=st.booleans())
    def plan(self, count, reset):
        new = range(self.next, self.next + count)
        self.next += count
        transfers = Transfers(fetches=fetches(*new), reset=reset)
        if reset:
            self.open.clear()
        self.open.update(new)
        self.tally.began(transfers)
        for plans in self.plans:
            plans.append(transfers)

    @rule(data=st.data())
    def run(self, data):
        rank = data.draw(st.integers(0, len(self.plans) - 1))
        if self.plans[rank]:
            self.run_one(rank)

    def run_one(self, rank):
        transfers = self.plans[rank].popleft()
        if transfers.reset:
            self.running[rank].clear()
        self.running[rank].update(fetch.number for fetch in transfers.fetches)

    @rule(data=st.data(), succeeded=st.booleans())
    def end(self, data, succeeded):
        rank = data.draw(st.integers(0, len(self.plans) - 1))
        if self.running[rank]:
            number = data.draw(st.sampled_from(sorted(self.running[rank])))
            self.end_one(rank, number, succeeded)

    def end_one(self, rank, number, succeeded):
        self.running[rank].remove(number)
        self.sent[rank].append({number: succeeded})

    @rule(data=st.data())
    def hear(self, data):
        rank = data.draw(st.integers(0, len(self.plans) - 1))
        if self.sent[rank]:
            self.hear_one(rank)

    def hear_one(self, rank):
        done = self.sent[rank].popleft()
        self.tally.ended(rank, done)
        for number, succeeded in done.items():
            self.outcomes.setdefault(number, {})[rank] = succeeded

    @precondition(lambda self: hasattr(self, "tally"))
    @rule()
    def take(self):
        expected = {
            number: all(self.outcomes[number].values())
            for number in self.open
            if len(self.outcomes.get(number, ())) == len(self.plans)
        }
        assert self.tally.take() == expected
        self.open.difference_update(expected)
        assert self.tally.is_waiting == bool(self.open)

    def teardown(self):
        if not hasattr(self, "tally"):
            return
        for rank, plans in enumerate(self.plans):
            while plans:
                self.run_one(rank)
            for number in list(self.running[rank]):
                self.end_one(rank, number, succeeded=(number + rank) % 3 > 0)
            while self.sent[rank]:
                self.hear_one(rank)
            self.take()
        assert not self.open and not self.tally.is_waiting, "a fetch never ends"


TestTally = TallyMachine.TestCase
TestTally.settings = QUICK
