"""Counts as data: histograms, and the counts of several replicas as one."""

from __future__ import annotations

import msgspec

from jengine.counts import STEP_TOKENS, Counts, DraftCounts, Histogram, ProgramTotals, together


def test_a_value_on_a_bound_belongs_below_it() -> None:
    histogram = Histogram.of([1, 10])
    for value in (0.5, 1, 1.5, 10, 11):
        histogram.observe(value)
    histogram.observe(2, times=3)
    assert histogram.counts == [2, 5, 1]
    assert histogram.total == 0.5 + 1 + 1.5 + 10 + 11 + 6
    again = Histogram.of([1, 10])
    again.observe_all([0.5, 1, 1.5, 10, 11, 2, 2, 2])
    assert again == histogram


def test_counts_survive_a_message() -> None:
    counts = Counts(
        running=2, step_seconds={"run": Histogram.of([1.0])},
        programs=ProgramTotals({"4+0x8": 1}, 2.5), replicas=(Counts(waiting=1),),
    )  # fmt: skip
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(counts), type=Counts) == counts


def test_replicas_add_up() -> None:
    tokens = Histogram.of(STEP_TOKENS)
    tokens.observe(5)
    programs = ProgramTotals({"a": 1}, 1.0)
    one = Counts(
        running=1, cache_usage=0.5, weights_version=2, last_step_age=3.0, step_tokens=tokens,
        step_seconds={"run": Histogram([1.0], [1, 2], 4.0)}, programs=programs,
    )  # fmt: skip
    two = Counts(
        running=2, cache_usage=0.1, weights_version=2, last_step_age=1.0, step_tokens=tokens,
        step_seconds={"run": Histogram([1.0], [0, 1], 2.0)},
    )  # fmt: skip
    both = together([one, two])
    assert (both.running, both.cache_usage, both.weights_version) == (3, 0.3, 2)
    assert both.last_step_age == 1.0, "some replica makes progress"
    assert both.step_tokens.total == 10
    assert both.step_seconds["run"] == Histogram([1.0], [1, 3], 6.0)
    assert both.programs == programs
    later = both.later(2.0)
    assert (later.last_step_age, later.replicas[0].last_step_age) == (3.0, 5.0)
    assert together([one, one]).programs == ProgramTotals({"a": 2}, 2.0)
    assert both.each == (one, two) and one.each == (one,)


def test_drafts_add_up_and_survive_a_message() -> None:
    one = Counts(drafts=DraftCounts(2, 5, 3, [2, 2, 1], [2, 1, 0]))
    other = Counts(drafts=DraftCounts(1, 1, 1, [1], [1]))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=Counts) == one
    assert together([one, other]).drafts == DraftCounts(3, 6, 4, [3, 2, 1], [3, 1, 0])
    assert one.drafts.mean_length == 2.5
    assert Counts().drafts.mean_length is None
