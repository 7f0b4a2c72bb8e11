"""Word-wraps streamed text.

In: pieces of text. Out: the same with line breaks at the terminal's width; a word is held back
until complete. Must not know where the text comes from.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable


class WordWrap:
    """Writer for a terminal whose `width()` may change; call `end` last."""

    def __init__(self, write: Callable[[str], None], width: Callable[[], int]) -> None:
        self._write, self._width = write, width
        self._column = 0
        self._gap = self._word = ""

    def __call__(self, text: str) -> None:
        """Write all complete words."""
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
        """Write the held-back word, on a new line if it does not fit."""
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
    """Display width: East Asian wide characters count 2, combining marks 0."""
    return sum(
        0 if unicodedata.combining(one) else 1 + (unicodedata.east_asian_width(one) in "WF")
        for one in text
    )
