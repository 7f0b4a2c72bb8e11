"""The number of drafts follows what is accepted, and trying costs little where nothing is."""

from __future__ import annotations

import random

import pytest

from jengine.speculative.draft_length import LONGEST_PAUSE, DraftLength, best_size, token_cost

TOKEN_COST = 0.1


def run(probability: float, tokens: int, most: int = 8) -> tuple[float, DraftLength]:
    """Time per token, in steps without drafts, if each draft is accepted with this probability."""
    chance, length = random.Random(0), DraftLength(most)
    time, given = 0.0, 0
    while given < tokens:
        drafted = length.count(TOKEN_COST, given)
        assert 0 <= drafted <= most
        accepted = 0
        while accepted < drafted and chance.random() < probability:
            accepted += 1
        time += 1 + TOKEN_COST * drafted
        given += 1 + accepted
        if drafted:
            length.observe(drafted, accepted, given)
    return time / given, length


def test_where_all_are_accepted_all_are_drafted() -> None:
    time, length = run(1.0, 2000)
    assert length.count(TOKEN_COST, 2000) == 8
    assert time < 0.25


@pytest.mark.parametrize("probability", [0.0, 0.02, 0.05])
def test_where_few_are_accepted_nearly_nothing_is_lost(probability: float) -> None:
    time, _ = run(probability, 20_000)
    assert time < 1 / 0.97


@pytest.mark.parametrize("probability", [0.3, 0.5, 0.8])
def test_it_never_loses_and_often_gains(probability: float) -> None:
    time, _ = run(probability, 20_000)
    assert time < (1 / 0.97 if probability < 0.5 else 0.85)


def test_it_comes_back_when_drafts_are_good_again() -> None:
    length = DraftLength(4)
    for tokens in range(5000):
        if drafted := length.count(TOKEN_COST, tokens):
            length.observe(drafted, 0, tokens)
    assert length.has_given_up(5000)
    tokens = 5000
    while (drafted := length.count(TOKEN_COST, tokens)) < 4:
        tokens += 1 + drafted
        if drafted:
            length.observe(drafted, drafted, tokens)
        assert tokens < 5000 + 30 * LONGEST_PAUSE
    assert not length.has_given_up(tokens)


def test_what_others_had_accepted_says_what_is_tried_first() -> None:
    assert DraftLength(4, 0.9).count(TOKEN_COST, 0) == 4
    doubtful = DraftLength(4, 0.01)
    assert doubtful.count(TOKEN_COST, 0) == 1  # a single attempt
    doubtful.observe(1, 0, 1)
    assert doubtful.count(TOKEN_COST, 2) == 0
    assert not doubtful.has_given_up(2)  # it has failed once


def test_large_batches_draft_only_what_is_nearly_certain() -> None:
    costs = [token_cost(rows, 10) for rows in (1, 32, 1000)]
    assert costs == sorted(costs)
    assert 0 < costs[0] < 0.1 and 0.75 < costs[1] < 0.8 and costs[2] < 1
    length = DraftLength(4)
    for accepted in (4, 1, 4, 0, 2, 1, 4):
        length.observe(4, accepted, 0)
    assert length.count(costs[0], 0) == 4
    assert length.count(costs[2], 0) <= 2  # no more than an attempt


@pytest.mark.parametrize(
    ("decodes", "drafts", "gain", "size"),
    [
        (32, 0, 0.0, 32),  # nothing is wanted
        (32, 32, 19.2, 32),  # the next size is twice as large, for half as many tokens more
        (32, 128, 128.0, 128),  # all is accepted
        (20, 4, 0.4, 32),  # what is padding anyway costs nothing
        (1, 4, 0.1, 2),
        (1, 4, 3.6, 8),
    ],
)
def test_a_step_grows_only_if_its_drafts_pay(
    decodes: int, drafts: int, gain: float, size: int
) -> None:
    assert best_size(decodes, drafts, gain, (2, 8, 32, 64, 128), 10) == size
