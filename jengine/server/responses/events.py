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
    """One response while its answer comes."""

    def begin(self) -> ResponseObject:
        """The response before its first item."""
        ...

    def advance(self, output: RequestOutput) -> list[Event]:
        """The events of the next output."""
        ...

    async def count_reasoning(self) -> None:
        """Count the tokens of reasoning, which `end` needs."""
        ...

    def end(self) -> tuple[list[Event], ResponseObject]:
        """The last events of items, and the finished response."""
        ...

    def fail(self, message: str) -> ResponseObject:
        """The response of an answer that an error has ended."""
        ...

    def give_up(self) -> None:
        """The client has left, or the answer failed. Without effect after the end."""
        ...


class ResponseEvents:
    """The events of one response. Those that announce it come with the first output."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._number = 0

    async def of(self, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """All events. An error before the first one is raised, a later one is told."""
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
