"""Breaks lines between words while text arrives in pieces.

In: pieces of an answer. Out: the same text with line breaks where the terminal is full. A word is
held back until it is complete. Must not know where the text comes from.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable


class WordWrap:
    """A writer for a terminal of `width()` columns, which may change; `end` writes the rest."""

    def __init__(self, write: Callable[[str], None], width: Callable[[], int]) -> None:
        self._write, self._width = write, width
        self._column = 0
        self._gap = self._word = ""

    def __call__(self, text: str) -> None:
        """Write what is complete of the text so far."""
        for character in text:
            if character == "\n":
                self.end()
                self._write("\n")
                self._column, self._gap = 0, ""
            elif character.isspace():
                self.end()
                self._gap += character.expandtabs(4)
            else:
                self._word += character
                if columns(self._word) >= self._width():  # wider than a line: no use in waiting
                    self.end()

    def end(self) -> None:
        """Write the word that is held back, on the next line if this one has no room for it."""
        if not self._word:
            return
        width = max(self._width(), 1)
        if self._gap and self._column and self._column + columns(self._gap + self._word) > width:
            self._write("\n")
            self._column, self._gap = 0, ""
        self._write(self._gap + self._word)
        self._column += columns(self._gap + self._word)
        # Behind a word that is wider than a line, which the terminal itself breaks.
        self._column -= (self._column - 1) // width * width
        self._gap = self._word = ""


def columns(text: str) -> int:
    """Columns of a terminal that a text takes: Chinese letters two, combining accents none."""
    return sum(
        0 if unicodedata.combining(one) else 1 + (unicodedata.east_asian_width(one) in "WF")
        for one in text
    )
