"""A short search for files that cost more than their request; `tests.media.search` goes on."""

from __future__ import annotations

import numpy as np

from tests.media.search import Search, head, picture_bomb, png, swollen, with_checksums


def test_files_are_read_or_refused_within_limits() -> None:
    search = Search(seed=0)
    search.run(lambda number: number < 100)
    assert search.broken == []
    assert not search.given_up, "none was ended for its time or memory"
    assert all(search.refused[kind] for kind in search.tried), "of every kind some are broken"
    assert search.refused.total() < search.tried.total(), "and some are whole"


def test_what_breaks_a_rule_is_kept() -> None:
    search = Search(seed=0)
    search.read = lambda kind, file: 1 / 0  # type: ignore[method-assign,assignment]
    search.run(lambda number: number < 3)
    assert [one["why"] for one in search.broken] == ["ZeroDivisionError: division by zero"] * 3


def test_bombs_are_what_they_seem() -> None:
    whole = png(head(3, 3), (b"IDAT", swollen(30)), (b"IEND", b""))
    assert with_checksums(whole) == whole
    assert max(len(picture_bomb(np.random.default_rng(n))) for n in range(40)) < 200_000
