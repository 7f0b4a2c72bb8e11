"""Limits on the text in a request, checked before anything reads it. Must not know endpoints.

In: a decoded body. Out: nothing, or 400 with the field, the limit, and the flag that raises it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from jengine.server.errors import ApiError

# Media fields, which have limits of their own.
MEDIA = frozenset({"url", "data", "image_url", "image", "video", "file_data", "prompt_embeds"})


@dataclass(frozen=True)
class TextLimits:
    """Upper bounds of texts, messages and tools per request."""

    chars: int
    messages: int

    @classmethod
    def of(cls, chars: int | None, messages: int | None, max_model_len: int) -> TextLimits:
        """Return the configured limits; unset ones follow from the context length."""
        return cls(
            max(2**20, 16 * max_model_len) if chars is None else chars,
            max(1024, max_model_len // 4) if messages is None else messages,
        )

    def check(self, body: msgspec.Struct, size: int) -> None:
        """Refuse a body whose texts or conversations exceed the limits. `size`: in bytes."""
        for name in ("messages", "input"):
            self.check_messages(getattr(body, name, None), name)
        if size <= self.chars:
            return  # a character takes at least one byte
        for field in msgspec.structs.fields(type(body)):
            if field.name not in MEDIA:
                self._check_field(getattr(body, field.name), field.encode_name)

    def check_messages(self, given: Any, name: str) -> None:
        """Refuse conversations of too many messages."""
        count = len(given) if isinstance(given, list) and given and is_message(given[0]) else 0
        if count > self.messages:
            raise ApiError(
                400,
                f"{name} has {count} items; at most {self.messages} are allowed in one request. "
                "Send fewer, or start the server with a larger --max-messages.",
                param=name,
            )

    def check_text(self, text: str, name: str) -> None:
        """Refuse a text that is too long."""
        self._check_chars(len(text), name)

    def check_tokens(self, tokens: Sequence[int], name: str) -> None:
        """Refuse more token ids than the longest allowed text could have."""
        if len(tokens) > self.chars:
            raise ApiError(
                400,
                f"{name} has {len(tokens)} items; at most {self.chars} are allowed. Send fewer, or "
                "start the server with a larger --max-text-chars.",
                param=name,
            )

    def _check_field(self, value: Any, name: str) -> None:
        texts = isinstance(value, list) and all(isinstance(one, str) for one in value)
        for one in value if texts else (value,):
            self._check_chars(text_size(one, self.chars), name)

    def _check_chars(self, chars: int, name: str) -> None:
        if chars > self.chars:
            raise ApiError(
                400,
                f"{name} has more than {self.chars} characters, which is the most for a text of "
                "this server. Send a shorter one, or start the server with a larger "
                "--max-text-chars.",
                param=name,
            )


def is_message(item: Any) -> bool:
    """Whether a list item is a chat message, rather than a text or token ids."""
    return isinstance(item, dict)


def text_size(value: Any, enough: int) -> int:
    """Characters in a nested value, plus one per container; stops counting beyond `enough`."""
    count, left = 0, [value]
    while left and count <= enough:
        one = left.pop()
        if isinstance(one, str):
            count += len(one)
        elif isinstance(one, Mapping):
            count += 1 + sum(map(len, one))
            left += [item for name, item in one.items() if name not in MEDIA or is_nested(item)]
        elif isinstance(one, list):
            count += 1
            left += one if one and not isinstance(one[0], int) else ()
    return count


def is_nested(item: Any) -> bool:
    """Whether a content part is a container rather than media data."""
    return isinstance(item, Mapping)
