"""Fleets on a virtual clock: times that can be reckoned by hand, and what must not be lost."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from jengine.capacity.simulation.fleet import Fleet
from jengine.capacity.simulation.step_times import StepTimes
from jengine.capacity.simulation.table_times import TableTimes
from jengine.capacity.simulation.trace import Arrival, SimulatedRequest, TraceSettings
from tests.capacity.fleets import Steps, any_tokens, fleet, kind

BUSY = TraceSettings(
    requests=60, rate=30.0, input_len=20, output_len=12, spread=0.5, prefixes=3, prefix_len=24
)
# Decodes slow down with their context.
TABLE = TableTimes(
    ([0, 2, 8], [0, 64], [8, 128]),
    [[[0.0, 0.0], [0.03, 0.04]], [[0.01, 0.013], [0.04, 0.06]], [[0.02, 0.027], [0.05, 0.08]]],
)


class Given:
    """A trace of requests that are given."""

    has_turns = False

    def __init__(self, *arrivals: tuple[float, int, int]) -> None:
        self.given = arrivals

    def arrivals(self) -> Iterator[Arrival]:
        for number, (at, prompt, answer) in enumerate(self.given):
            yield at, SimulatedRequest(str(number), [1 + number] * prompt, answer)


def columns(one: Fleet) -> dict[str, list[float]]:
    return {name: values.tolist() for name, values in one.history.columns().items()}


def check_idle(one: Fleet) -> None:
    """Nothing is left over in any scheduler or cache."""
    assert not one.open
    for _, replica in one.sites:
        assert not replica.scheduler.has_unfinished
        replica.cache.check()
        assert replica.cache.usage == 0


def test_a_lone_request_takes_a_step_for_each_token() -> None:
    one = fleet([(kind(times=Steps(0.01)), 1)], Given((2.0, 10, 5)))
    one.run()
    found = columns(one)
    assert found["first"] == pytest.approx([2.01])
    assert found["ended"] == pytest.approx([2.05])
    assert found["answer"] == [5]
    assert one.sites[0][1].work.busy == pytest.approx(0.05)


def test_a_step_before_which_nothing_ran_takes_longer() -> None:
    one = fleet(
        [(kind(times=Steps(0.01), idle_seconds=0.003), 1)], Given((2.0, 10, 5), (3.0, 9, 2))
    )
    one.run()
    found = columns(one)
    assert found["first"] == pytest.approx([2.013, 3.013])
    assert found["ended"] == pytest.approx([2.053, 3.023])


def test_a_request_that_comes_during_a_step_waits_for_those_that_are_queued() -> None:
    # The second arrives in the first step, behind which another is queued already.
    one = fleet([(kind(times=Steps(0.01)), 1)], Given((0.0, 10, 9), (0.005, 10, 2)))
    one.run()
    assert sorted(columns(one)["first"]) == pytest.approx([0.01, 0.03])


def test_without_overlap_it_joins_the_next_step() -> None:
    slow = kind(times=Steps(0.01), depth=0)
    one = fleet([(slow, 1)], Given((0.0, 10, 9), (0.005, 10, 2)))
    one.run()
    assert sorted(columns(one)["first"]) == pytest.approx([0.01, 0.02])


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("turns", [1, 3])
@pytest.mark.parametrize("rate", [0.5, 30.0])
@pytest.mark.parametrize("times", [Steps(0.01, 0.001, 0.0005), TABLE], ids=["linear", "table"])
def test_jumps_change_nothing(replicas: int, turns: int, rate: float, times: StepTimes) -> None:
    trace = TraceSettings(requests=30, rate=rate, input_len=9, output_len=20, spread=0.4,
                          turns=turns, think=0.3)  # fmt: skip
    jumping, single = (
        fleet([(kind(times=times, idle_seconds=0.002), replicas)], trace) for _ in range(2)
    )
    for _, replica in single.sites:
        replica.horizon = lambda waiting: 0.0
    for one in (jumping, single):
        one.run()
        check_idle(one)
    assert columns(jumping) == columns(single)
    assert jumping.history.gaps.percentile(99) == single.history.gaps.percentile(99)
    if rate < 1 and replicas == turns == 1:
        plans = [one.sites[0][1].scheduler.empty_plan().step for one in (jumping, single)]
        assert plans[0] < plans[1] / 2, "an idle replica saves most plans"


def test_routing_by_prefix_hits_more_often() -> None:
    trace = TraceSettings(requests=80, rate=20.0, input_len=8, output_len=4, prefixes=4,
                          prefix_len=100)  # fmt: skip
    rates = {}
    for routing in ("prefix", "load", "turns"):
        one = fleet([(kind(60), 4)], trace, routing)
        one.run()
        check_idle(one)
        found = one.history.columns()
        rates[routing] = found["cached"].sum() / found["prompt"].sum()
    assert rates["prefix"] > 1.3 * max(rates["load"], rates["turns"])


def test_preempted_requests_are_answered_in_full() -> None:
    trace = TraceSettings(requests=20, rate=200.0, input_len=20, output_len=40)
    one = fleet([(kind(40), 1)], trace)
    one.run()
    assert one.sites[0][1].work.preemptions > 0
    assert columns(one)["answer"] == [40] * 20
    check_idle(one)


def test_requests_of_a_dead_replica_run_again_elsewhere() -> None:
    whole, broken = (fleet([(kind(), 3)], BUSY, run=any_tokens) for _ in range(2))
    whole.run()
    broken.at(0.7, lambda: broken.fail(0, 1))
    broken.at(1.4, lambda: broken.come_back(0, 1))
    broken.run()
    assert broken.history.rerun > 0
    assert sum(columns(broken)["answer"]) == sum(columns(whole)["answer"])
    assert len(columns(broken)["ended"]) == BUSY.requests
    assert max(columns(broken)["ended"]) >= max(columns(whole)["ended"])
    check_idle(broken)


def test_without_any_replica_requests_wait_for_one() -> None:
    one = fleet([(kind(), 1)], BUSY, run=any_tokens)
    one.at(0.3, lambda: one.fail(0, 0))
    one.at(5.0, lambda: one.come_back(0, 0))
    one.run()
    assert len(columns(one)["ended"]) == BUSY.requests
    assert max(columns(one)["ended"]) > 5.0
    check_idle(one)
    gone = fleet([(kind(), 1)], BUSY, run=any_tokens)
    gone.at(0.3, lambda: gone.fail(0, 0))
    assert gone.run().unanswered == BUSY.requests - len(columns(gone)["ended"]) > 0


def test_a_prompt_that_is_too_long_is_refused() -> None:
    one = fleet([(kind(20), 1)], Given((0.0, 90, 4), (0.0, 8, 4)))
    assert one.run().refused == 1
    assert columns(one)["answer"] == [4]


def test_prompts_run_in_one_pool_and_answers_in_another() -> None:
    one = fleet([(kind(), 2), (kind(), 2)], BUSY, run=any_tokens, link=1e5)
    one.run()
    check_idle(one)
    found = one.history.columns()
    assert len(found["ended"]) == BUSY.requests
    lengths = found["prompt"][found["answer"] > 1]
    assert one.history.moved_bytes == 100 * lengths.sum()
    prefill, decode = (
        [replica.work for pool, replica in one.sites if pool is one.pools[place]]
        for place in (0, 1)
    )
    assert sum(work.decoded for work in prefill) == 0
    # What is not a whole block, and the token that came with the copy, is computed again.
    assert sum(work.prefilled for work in decode) <= 4 * BUSY.requests
    slow = fleet([(kind(), 2), (kind(), 2)], BUSY, run=any_tokens, link=2e3)
    slow.run()
    assert np.median(slow.history.columns()["ended"]) > np.median(found["ended"])


@pytest.mark.parametrize("stage", [0, 1])
def test_no_request_is_lost_when_a_replica_of_a_pair_dies(stage: int) -> None:
    one = fleet([(kind(), 2), (kind(), 2)], BUSY, run=any_tokens, link=1e4)
    one.at(0.6, lambda: one.fail(stage, 0))
    one.run()
    assert one.history.rerun > 0
    assert len(columns(one)["ended"]) == BUSY.requests
    check_idle(one)


def test_host_memory_keeps_what_the_cache_evicts() -> None:
    trace = TraceSettings(requests=90, rate=6.0, input_len=20, output_len=10, turns=5, think=2.0)
    without, beside = (
        fleet([(kind(60, host_bytes=size, copy_rate=1e6), 1)], trace, run=any_tokens)
        for size in (0, 10_000_000)
    )
    hits = []
    for one in (without, beside):
        one.run()
        check_idle(one)
        found = one.history.columns()
        hits.append(found["cached"].sum() / found["prompt"].sum())
    assert hits[1] > hits[0] + 0.2
    assert beside.history.fetched_bytes > 0
    assert beside.sites[0][1].work.prefilled < 0.7 * without.sites[0][1].work.prefilled
