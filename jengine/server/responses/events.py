"""The stream of a response: outputs in, numbered events out, as OpenAI's client reads them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Protocol

import msgspec

from jengine.outputs import RequestOutput
from jengine.server.errors import api_error
from jengine.server.responses.items import Event
from jengine.server.responses.types import ResponseObject
from jengine.server.serving.generation import Outputs

_encoder = msgspec.json.Encoder()


class Progress(Protocol):
    """Builds the events of one response from outputs."""

    def begin(self) -> ResponseObject:
        """The response object before its first item."""
        ...

    def advance(self, output: RequestOutput) -> list[Event]:
        """Events of the next engine output."""
        ...

    async def count_reasoning(self) -> None:
        """Tokenize the reasoning to count it; to be called before `end`."""
        ...

    def end(self) -> tuple[list[Event], ResponseObject]:
        """Return the closing events, and the completed response."""
        ...

    def fail(self, message: str) -> ResponseObject:
        """Return the failed response."""
        ...

    def give_up(self) -> None:
        """Cancelled by disconnect or error. No-op after `end`."""
        ...


class ResponseEvents:
    """SSE events of one response. `response.created` is sent with the first output."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._number = 0

    async def of(self, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """Yield all events. An error before the first one is raised; later ones become events."""
        progress, begun = self._progress, False
        try:
            async for _, output in outputs:
                if not begun:
                    begun = True
                    response = progress.begin()
                    yield self._about("response.created", response)
                    yield self._about("response.in_progress", response)
                for event in progress.advance(output):
                    yield self._event(event)
            await progress.count_reasoning()
            last, response = progress.end()
            for event in last:
                yield self._event(event)
            name = "completed" if response.status == "completed" else "incomplete"
            yield self._about(f"response.{name}", response)
        except Exception as error:
            if not begun:
                raise
            response = progress.fail(api_error(error).body.error.message)
            yield self._about("response.failed", response)
        finally:
            progress.give_up()
            await outputs.aclose()

    def _about(self, name: str, response: ResponseObject) -> bytes:
        return self._event({"type": name, "response": response})

    def _event(self, event: dict[str, Any]) -> bytes:
        data = _encoder.encode({**event, "sequence_number": self._number})
        self._number += 1
        return b"event: " + event["type"].encode() + b"\ndata: " + data + b"\n\n"
