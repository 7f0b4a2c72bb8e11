"""The earliest match cuts the text; what could become one is held back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jengine.errors import RequestError
from jengine.text.transcript import Checked, StopChecker

STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=4)
PIECES = st.lists(st.text(alphabet="abc", max_size=4), max_size=12)


def run(checker: StopChecker, pieces: list[str]) -> tuple[str, str | None]:
    shown = ""
    for piece in pieces:
        text, stop = checker.push(piece)
        shown += text
        if stop is not None:
            return shown, stop
    return shown + checker.finish(), None


def expected(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """Cut `text` at the match that completes first, found by trying every end."""
    for end in range(1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return text[: end if include else end - len(stop)], stop
    return text, None


@settings(max_examples=300, deadline=None)
@given(pieces=PIECES, stops=STOPS, include=st.booleans())
def test_pieces_give_what_the_whole_text_gives(
    pieces: list[str], stops: list[str], include: bool
) -> None:
    assert run(StopChecker(stops, include), pieces) == expected("".join(pieces), stops, include)


@settings(max_examples=100, deadline=None)
@given(pieces=PIECES, stops=STOPS)
def test_exactly_the_longest_stop_less_one_is_held_back(
    pieces: list[str], stops: list[str]
) -> None:
    checker, shown, given_text = StopChecker(stops, False), "", ""
    for piece in pieces:
        text, stop = checker.push(piece)
        shown, given_text = shown + text, given_text + piece
        if stop is not None:
            return
        held = max(map(len, stops), default=1) - 1
        assert shown == given_text[: max(len(given_text) - held, 0)]


def test_of_matches_that_end_together_the_first_listed_counts() -> None:
    assert run(StopChecker(["b", "ab"], False), ["xab"]) == ("xa", "b")
    assert run(StopChecker(["ab", "b"], False), ["xab"]) == ("x", "ab")


def test_the_match_that_completes_first_counts_though_it_starts_later() -> None:
    assert run(StopChecker(["abcd", "c"], False), ["abcd"]) == ("ab", "c")


def test_nothing_is_held_back_when_the_string_is_included() -> None:
    checker = StopChecker(["stop"], True)
    assert checker.push("a sto") == Checked("a sto", None)
    assert checker.push("p it") == Checked("p", "stop")


def test_text_not_searched_can_still_begin_a_match() -> None:
    checker = StopChecker(["ab"], False)
    assert checker.push("abxa", search=False) == Checked("abx", None)
    assert checker.push("b") == Checked("", "ab")


def test_no_stop_strings_pass_everything() -> None:
    assert run(StopChecker([], False), ["a", "", "b"]) == ("ab", None)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="empty string"):
        StopChecker(["a", ""], False)
