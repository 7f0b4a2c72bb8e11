"""Parser combinators over text that arrives in pieces.

In: pieces of text. Out: parse results. A parser is a generator over a `TextReader`: it yields
results as they become certain, and None to wait for more text, so results do not depend on
chunking. Every primitive reads each character a bounded number of times.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Generic, TypeVar, final

Part = TypeVar("Part")
Returned = TypeVar("Returned")
Parsing = Generator[Part | None, None, Returned]


@final
class Markers:
    """Literal strings to search for. None may be contained in another: then the first match in a
    partial text is the first in the full text."""

    def __init__(self, *markers: str) -> None:
        assert all(markers), "an empty marker is found everywhere"
        pairs = [(a, b) for a in markers for b in markers if a != b]
        assert not any(a in b for a, b in pairs), f"one of {markers} contains another"
        self._markers = markers
        # An alternation of literals: at each position at most their lengths are compared.
        self._search = re.compile("|".join(map(re.escape, markers))).search
        self._longest = max(map(len, markers))

    def find(self, text: str, start: int) -> tuple[int, str]:
        """(position, marker) of the first match; (-1, "") if none."""
        match = self._search(text, start)
        return (match.start(), match.group()) if match else (-1, "")

    def unfinished(self, text: str, start: int) -> int:
        """Position where a truncated marker may start; the text's length if none."""
        for at in range(max(start, len(text) - self._longest + 1), len(text)):
            tail = text[at:]
            if any(marker.startswith(tail) for marker in self._markers):
                return at
        return len(text)


@final
class TextReader:
    """Unconsumed text. `ended`: no more will arrive."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self.ended = False

    def feed(self, text: str) -> None:
        """Append text; consumed text is dropped, so little is copied."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def peek(self) -> str:
        """Next character, or "" if not available yet."""
        return self._text[self._at : self._at + 1]

    def take(self, count: int | None = None) -> str:
        """Consume all available text, or at most `count` characters."""
        start = self._at
        self._at = len(self._text) if count is None else min(start + count, len(self._text))
        return self._text[start : self._at]

    def put_back(self, count: int) -> None:
        """Unread the last characters, consumed since the last `feed`."""
        assert count <= self._at, "only text that is still there can be given back"
        self._at -= count

    def take_while(self, run: re.Pattern[str]) -> str:
        """Consume the longest match of `run`, a repeated character class."""
        match = run.match(self._text, self._at)
        return self.take(match.end() - self._at) if match else ""

    def take_until(self, markers: Markers) -> tuple[str, str]:
        """Consume text up to and including the next marker. Returns (text, marker or "")."""
        start = self._at
        found, marker = markers.find(self._text, start)
        if found < 0:
            found = len(self._text) if self.ended else markers.unfinished(self._text, start)
        self._at = found + len(marker)
        return self._text[start:found], marker

    def sees(self, expected: str) -> bool | None:
        """Whether `expected` follows; None while undecided."""
        there = self._text[self._at : self._at + len(expected)]
        if there == expected:
            return True
        return None if expected.startswith(there) and not self.ended else False


@final
class TextParser(Generic[Part]):
    """Drives a generator over a reader: `push` text, `finish` at the end; both return results. Text
    left unread when the generator returns is dropped."""

    def __init__(self, parse: Callable[[TextReader], Parsing[Part, object]]) -> None:
        self._reader = TextReader()
        self._parsing: Parsing[Part, object] | None = parse(self._reader)

    def push(self, text: str) -> list[Part]:
        self._reader.feed(text)
        return self._run()

    def finish(self) -> list[Part]:
        self._reader.ended = True
        results = self._run()
        assert self._parsing is None, "a parser asked for more text after its end"
        return results

    def _run(self) -> list[Part]:
        results: list[Part] = []
        if self._parsing is None:
            self._reader.take()
            return results
        for result in self._parsing:
            if result is None:
                return results
            results.append(result)
        self._parsing = None
        return results


def pass_until(
    reader: TextReader, markers: Markers, make: Callable[[str], Part]
) -> Parsing[Part, str]:
    """Yield text up to the next marker as it arrives; return the marker, "" at the end."""
    while True:
        text, marker = reader.take_until(markers)
        if text:
            yield make(text)
        if marker or reader.ended:
            return marker
        yield None


def pass_rest(reader: TextReader, make: Callable[[str], Part]) -> Parsing[Part, None]:
    """Yield all remaining text as it arrives."""
    while True:
        if text := reader.take():
            yield make(text)
        if reader.ended:
            return
        yield None


def collect_until(reader: TextReader, markers: Markers) -> Parsing[Part, tuple[str, str]]:
    """Return (text before the next marker, marker); the marker is "" at the end."""
    texts: list[str] = []
    while True:
        text, marker = reader.take_until(markers)
        texts.append(text)
        if marker or reader.ended:
            return "".join(texts), marker
        yield None


def next_character(reader: TextReader) -> Parsing[Part, str]:
    """Return the next character without consuming it, "" at the end."""
    while not (character := reader.peek()) and not reader.ended:
        yield None
    return character


def take_run(reader: TextReader, run: re.Pattern[str]) -> Parsing[Part, str]:
    """Return the longest match of `run`, a repeated character class."""
    texts: list[str] = []
    while True:
        texts.append(reader.take_while(run))
        if reader.peek() or reader.ended:
            return "".join(texts)
        yield None


def goes_on_with(reader: TextReader, expected: str) -> Parsing[Part, bool]:
    """Return whether `expected` follows, without consuming it."""
    while (seen := reader.sees(expected)) is None:
        yield None
    return seen


def take_expected(reader: TextReader, expected: str) -> Parsing[Part, bool]:
    """Consume `expected` if it follows; return whether it did."""
    seen = yield from goes_on_with(reader, expected)
    if seen:
        reader.take(len(expected))
    return seen
