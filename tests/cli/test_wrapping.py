"""Answers are wrapped between words at a terminal, however the text is cut into pieces."""

from __future__ import annotations

import io
import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given

from jengine.cli.terminal import Terminal, WordWrap, columns


def wrapped(pieces: list[str], width: int) -> str:
    written: list[str] = []
    writer = WordWrap(written.append, lambda: width)
    for piece in pieces:
        writer(piece)
    writer.end()
    return "".join(written)


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["one two three"], "one two\nthree"),
        (["one t", "wo", " thr", "ee"], "one two\nthree"),
        (["one   \n  two"], "one\n  two"),
        (["unbreakable"], "unbreakable"),
        (["a unbreakable b"], "a\nunbreakable b"),
        (["狗狗狗 狗"], "狗狗狗\n狗"),
        (["", "\n", "\n"], "\n\n"),
    ],
)
def test_lines_are_broken_between_words(pieces: list[str], text: str) -> None:
    assert wrapped(pieces, 8) == text


@given(st.text("ab \n狗", max_size=60), st.integers(1, 20), st.lists(st.integers(0, 60)))
def test_the_words_stay_and_no_line_with_two_is_too_long(
    text: str, width: int, cuts: list[int]
) -> None:
    ends = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in itertools.pairwise(ends)]
    shown = wrapped(pieces, width)
    assert shown == wrapped([text], width)
    assert shown.split() == text.split()
    for line in shown.splitlines():
        # The first word behind a wide one shares its last line; indentation stays as it is.
        wide = any(columns(word) > width for word in line.split())
        assert columns(line) <= width or wide or line.startswith(" ")


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "text"), [(io.StringIO, "a  b c"), (Screen, "a\nb\nc")])
def test_only_terminals_wrap(
    stream: type[io.StringIO], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "2")
    terminal = Terminal(io.StringIO(), stream(), io.StringIO())
    with terminal.answer() as write:
        write("a  b")
        write(" c")
    assert terminal.stdout.getvalue() == text
