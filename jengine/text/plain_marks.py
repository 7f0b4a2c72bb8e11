"""Neutralises media special tokens in users' texts.

In: messages before templating. Out: messages with an unguessable mark in place of each such word,
and the templated text split so that those words are encoded as plain text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

FIRST = 0xF0000  # private use area
DIGITS = 16


class PlainMarks:
    """One unguessable mark per word."""

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
        """Replace words by marks in messages."""
        if not self._marks or not isinstance(messages, list | tuple):
            return messages
        return [self._in_message(one) if isinstance(one, Mapping) else one for one in messages]

    def shown(self, text: str) -> str:
        """Replace marks by words."""
        return (
            self._any_mark.sub(lambda found: self._words[found[0]], text) if self._marks else text
        )

    def parts(self, text: str) -> list[tuple[str, bool]]:
        """Split a text at marks: (text, whether it was a marked word)."""
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
