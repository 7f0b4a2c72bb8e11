"""Special tokens of media in what users write: text and nothing else.

In: messages before a chat template writes them. Out: the same with a mark in place of each such
word, and the parts of what the template wrote, of which some are encoded as plain text. A mark has
digits that nobody outside of the process can guess.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

FIRST = 0xF0000  # of characters for private use
DIGITS = 16


class PlainMarks:
    """Marks for some words; one for each."""

    def __init__(self, words: Sequence[str]) -> None:
        secret = "".join(chr(FIRST + secrets.randbelow(16)) for _ in range(DIGITS))
        self._marks = {
            word: f"{secret}{chr(FIRST + 16 + number)}"
            for number, word in enumerate(sorted(set(words), key=len, reverse=True))
        }
        self._words = {mark: word for word, mark in self._marks.items()}
        self._any_word = re.compile("|".join(map(re.escape, self._marks)))
        self._any_mark = re.compile("|".join(map(re.escape, self._words)))

    def hidden(self, messages: Any) -> Any:
        """The messages with marks in their texts."""
        if not self._marks or not isinstance(messages, list | tuple):
            return messages
        return [self._in_message(one) if isinstance(one, Mapping) else one for one in messages]

    def shown(self, text: str) -> str:
        """A text with words in place of marks."""
        return (
            self._any_mark.sub(lambda found: self._words[found[0]], text) if self._marks else text
        )

    def parts(self, text: str) -> list[tuple[str, bool]]:
        """The parts of a text with marks, and whether each is a word that a mark stood for."""
        if not self._marks:
            return [(text, False)]
        parts, end = list[tuple[str, bool]](), 0
        for found in self._any_mark.finditer(text):
            parts += [(text[end : found.start()], False), (self._words[found[0]], True)]
            end = found.end()
        return [part for part in (*parts, (text[end:], False)) if part[0]]

    def _in_message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        content = message.get("content")
        if isinstance(content, str):
            return {**message, "content": self._in_text(content)}
        if not isinstance(content, list | tuple):
            return dict(message)
        return {**message, "content": [self._in_part(part) for part in content]}

    def _in_part(self, part: Any) -> Any:
        if isinstance(part, str):
            return self._in_text(part)
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            return part
        return {**part, "text": self._in_text(part["text"])}

    def _in_text(self, text: str) -> str:
        return self._any_word.sub(lambda found: self._marks[found[0]], text)
