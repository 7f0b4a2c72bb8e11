"""Server-sent events, and the chunks of answers in them.

In: bytes of a response's body, cut anywhere. Out: the data of each event; from it a `Chunk`, of
completions and of chats alike. Fields that are not read here are skipped.
"""

from __future__ import annotations

from typing import Any

import msgspec

DONE = b"[DONE]"


class Delta(msgspec.Struct, gc=False):
    """What a chunk adds to a chat message."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None  # the older name of `reasoning`
    tool_calls: list[Any] | None = None


class Choice(msgspec.Struct, gc=False):
    """What a chunk adds to one answer."""

    text: str | None = None
    delta: Delta | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None

    @property
    def added(self) -> str:
        """The new text, without reasoning."""
        if self.delta is not None:
            return self.delta.content or ""
        return self.text or ""

    @property
    def thought(self) -> str:
        """The new text of the model's reasoning."""
        if self.delta is None:
            return ""
        return self.delta.reasoning or self.delta.reasoning_content or ""

    @property
    def opens(self) -> bool:
        """Whether this chunk only names the role of the message that begins."""
        delta = self.delta
        return (
            delta is not None
            and delta.role is not None
            and self.finish_reason is None
            and not (delta.content or delta.tool_calls or self.thought or self.token_ids)
        )


class Usage(msgspec.Struct, gc=False):
    """The tokens that the server counted."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None


class Chunk(msgspec.Struct, gc=False):
    """The data of one event."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


read_chunk = msgspec.json.Decoder(Chunk).decode


class EventReader:
    """Joins the bytes of a body to events; comments and other fields are passed over."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, body: bytes) -> list[bytes]:
        """The data of the events that are complete now."""
        rest = self._rest + body if self._rest else body
        if b"\r" in rest:  # JSON has no bare carriage return
            rest = rest.replace(b"\r\n", b"\n")
        *events, self._rest = rest.split(b"\n\n")
        return [data for event in events if (data := data_of(event))]


def data_of(event: bytes) -> bytes:
    """The data of one event, of several lines where it has them."""
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines = (line for line in event.split(b"\n") if line.startswith(b"data:"))
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)
