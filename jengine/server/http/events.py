"""The events of a stream as bytes; the part that all chunks of an answer share is encoded once.

In: the chunk of an answer without choices, then choices. Out: events. The bytes are those of a
whole chunk with that choice.
"""

from __future__ import annotations

import msgspec

_encoder = msgspec.json.Encoder()
_END = b'"choices":[]}'


class ChoiceEvents:
    """Events of chunks that have one choice, and otherwise only what every chunk has."""

    def __init__(self, bare: msgspec.Struct) -> None:
        """`bare`: a chunk without choices, whose fields behind them are all unset."""
        data = _encoder.encode(bare)
        if not data.endswith(_END):
            raise ValueError(f"expected a chunk that ends with its choices, got {data!r}")
        self._head = b"data: " + data[: -len("]}")]

    def of(self, choice: msgspec.Struct) -> bytes:
        """The event of the chunk with this choice."""
        return self._head + _encoder.encode(choice) + b"]}\n\n"


def event(data: object) -> bytes:
    """One event with this object as JSON."""
    return b"data: " + _encoder.encode(data) + b"\n\n"
