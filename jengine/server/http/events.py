"""Encodes SSE events; the constant fields of a response's chunks are encoded once.

In: a chunk without choices, then choices. Out: the same bytes as of whole chunks.
"""

from __future__ import annotations

import msgspec

_encoder = msgspec.json.Encoder()
_END = b'"choices":[]}'


class ChoiceEvents:
    """Encoder of SSE events for chunks with one choice, which pre-encodes the constant fields."""

    def __init__(self, bare: msgspec.Struct) -> None:
        """`bare`: the chunk without choices; its fields after `choices` must be unset."""
        data = _encoder.encode(bare)
        if not data.endswith(_END):
            raise ValueError(f"expected a chunk that ends with its choices, got {data!r}")
        self._head = b"data: " + data[: -len("]}")]

    def of(self, choice: msgspec.Struct) -> bytes:
        """Encode the chunk that has this choice."""
        return self._head + _encoder.encode(choice) + b"]}\n\n"


def event(data: object) -> bytes:
    """Encode an object as one SSE `data:` event."""
    return b"data: " + _encoder.encode(data) + b"\n\n"
