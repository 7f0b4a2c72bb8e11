"""Log-probability tables that are made when they are read, and the buffer of a growing answer."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from jengine.logprobs import Logprob, LogprobTables, ScoreBuffer, StepLogprobs


class Texts:
    """Counts what is decoded."""

    def __init__(self) -> None:
        self.asked = 0

    def of(self, token_ids: list[int], context: Sequence[int]) -> list[str]:
        self.asked += len(token_ids)
        return [f"{context[-1]}>{number}" for number in token_ids]


def scores(positions: int, columns: int = 3) -> StepLogprobs:
    ids = np.arange(positions * columns, dtype=np.int32).reshape(positions, columns)
    ids[:, 0] = ids[:, -1]  # the chosen token is also among the best ones
    return StepLogprobs(-ids.astype(np.float32), ids, np.full(positions, columns - 1, np.int32))


def test_a_long_prompt_costs_nothing_until_it_is_read() -> None:
    texts, prompt = Texts(), list(range(100_001))
    tables = LogprobTables(scores(100_000, 21), prompt, 1, texts, opens_prompt=True)
    assert len(tables) == 100_001 and texts.asked == 0
    assert tables[0] is None
    last = tables[-1]
    assert texts.asked == 21 and len(last) == 20
    assert last[2_099_999] == Logprob(-2_099_999.0, 20, "99999>2099999")


def test_tables_are_as_a_list_of_them() -> None:
    tables = LogprobTables(scores(4), [9, 8, 7, 6, 5], 1, Texts())
    plain = list(tables)
    assert tables == plain and plain == tables and tables[1:3] == plain[1:3]
    assert tables + plain == plain + tables == plain * 2 and repr(tables) == repr(plain)
    assert type(copy.deepcopy(tables)) is list and copy.deepcopy(tables) == plain
    assert plain[0] == {2: Logprob(-2.0, 2, "9>2"), 1: Logprob(-1.0, 1, "9>1")}


def test_a_growing_answer_is_copied_a_few_times_only() -> None:
    buffer, parts = ScoreBuffer(), scores(2000)
    bases, views = set(), []
    for position in range(2000):
        buffer.append(parts.cut(position, position + 1))
        views.append(buffer.view(0, len(buffer)))
        assert views[-1].values.base is not None, "a view copies nothing"
        bases.add(id(views[-1].values.base))
    assert len(bases) <= 12, "arrays double when they are full"
    for view in views[::97]:
        assert np.array_equal(view.ids, parts.ids[: len(view.rank)])
    assert buffer.view(5, 9).rank.shape == (4,)
    assert len(ScoreBuffer().view(0, 0).rank) == 0
