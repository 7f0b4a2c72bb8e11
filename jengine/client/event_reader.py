"""Parses server-sent events and decodes their chunks.

In: body bytes, split anywhere. Out: data of each event, and from it a `Chunk`, for completions and
chat alike. Unknown fields are ignored.
"""

from __future__ import annotations

from typing import Any

import msgspec

DONE = b"[DONE]"


class Delta(msgspec.Struct, gc=False):
    """Increment of a chat message."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None  # the older name of `reasoning`
    tool_calls: list[Any] | None = None


class Choice(msgspec.Struct, gc=False):
    """Increment of one completion."""

    text: str | None = None
    delta: Delta | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None

    @property
    def added(self) -> str:
        """New text, excluding reasoning."""
        if self.delta is not None:
            return self.delta.content or ""
        return self.text or ""

    @property
    def thought(self) -> str:
        """New reasoning text."""
        if self.delta is None:
            return ""
        return self.delta.reasoning or self.delta.reasoning_content or ""

    @property
    def opens(self) -> bool:
        """Whether this chunk only announces the message's role."""
        delta = self.delta
        return (
            delta is not None
            and delta.role is not None
            and self.finish_reason is None
            and not (delta.content or delta.tool_calls or self.thought or self.token_ids)
        )


class Usage(msgspec.Struct, gc=False):
    """Token counts reported by the server."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None


class Chunk(msgspec.Struct, gc=False):
    """Decoded data of one event."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


read_chunk = msgspec.json.Decoder(Chunk).decode


class EventReader:
    """Incremental SSE parser; comments and other fields are skipped."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, body: bytes) -> list[bytes]:
        """Add body bytes. Returns the data of events completed by them."""
        rest = self._rest + body if self._rest else body
        if b"\r" in rest:  # JSON has no bare carriage return
            rest = rest.replace(b"\r\n", b"\n")
        *events, self._rest = rest.split(b"\n\n")
        return [data for event in events if (data := data_of(event))]


def data_of(event: bytes) -> bytes:
    """Data of one event; several data lines are joined by newlines."""
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines = (line for line in event.split(b"\n") if line.startswith(b"data:"))
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)
