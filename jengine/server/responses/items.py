"""Output items of a response under construction, and their stream events.

In: the parts of an answer in order. Out: items, and events without sequence numbers. JSON responses
use the same code and drop the events, so a stream adds up to them. Must not know engines or HTTP.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jengine.text.chat_parser import ChatPart, Content, Reasoning, ToolArguments, ToolStart

Event = dict[str, Any]
Item = dict[str, Any]


def new_id(prefix: str) -> str:
    """Random id in OpenAI's form, `prefix_...`."""
    return f"{prefix}_{uuid.uuid4().hex}"


class OutputItems:
    """Output items of a response, in order; at most the last one is open."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._texts: list[str] = []  # of the open item
        self._logprobs: list[Any] = []  # of the open item
        self._waiting: list[Any] = []  # of tokens whose text is held back
        self._is_open = False

    def add(self, part: ChatPart) -> Iterator[Event]:
        """Yield the events for the next message part."""
        match part:
            case Content():
                yield from self._open("message", _message)
                logprobs, self._waiting = self._waiting, []
                self._logprobs += logprobs
                yield from self._delta("response.output_text", part.text, logprobs=logprobs)
            case Reasoning():
                yield from self._open("reasoning", _reasoning)
                yield from self._delta("response.reasoning_text", part.text)
            case ToolStart():
                yield from self.close("completed")
                yield from self._open("function_call", lambda: _function_call(part))
            case ToolArguments():
                yield from self._delta("response.function_call_arguments", part.text)

    def score(self, logprobs: Sequence[Any]) -> None:
        """Log-probabilities that belong to the next content part."""
        self._waiting += logprobs

    def close(self, status: str) -> Iterator[Event]:
        """Yield the events that close the open item, if there is one."""
        if not self._is_open:
            return
        self._is_open = False
        item, text = self.items[-1], "".join(self._texts)
        item["status"] = status
        if item["type"] == "function_call":
            item["arguments"] = text
            yield self._event(
                "response.function_call_arguments.done", arguments=text, name=item["name"]
            )
        else:
            yield from self._close_part(item, text)
        yield self._about_item("response.output_item.done")

    def _close_part(self, item: Item, text: str) -> Iterator[Event]:
        is_message = item["type"] == "message"
        self._logprobs += self._waiting if is_message else []
        part = _output_text(text, self._logprobs) if is_message else _reasoning_text(text)
        item["content"] = [part]
        name = "response.output_text.done" if is_message else "response.reasoning_text.done"
        more = {"logprobs": self._logprobs} if is_message else {}
        yield self._event(name, content_index=0, text=text, **more)
        yield self._event("response.content_part.done", content_index=0, part=part)

    def _open(self, kind: str, make: Callable[[], Item]) -> Iterator[Event]:
        """Start an item of this kind, unless the open one is of that kind."""
        if self._is_open and self.items[-1]["type"] == kind:
            return
        yield from self.close("completed")
        self._is_open = True
        self._texts, self._logprobs = [], []
        self.items.append(make())
        yield self._about_item("response.output_item.added")
        if kind != "function_call":
            part = _output_text("", []) if kind == "message" else _reasoning_text("")
            yield self._event("response.content_part.added", content_index=0, part=part)

    def _delta(self, name: str, text: str, **more: Any) -> Iterator[Event]:
        self._texts.append(text)
        place = {} if name.endswith("arguments") else {"content_index": 0}
        yield self._event(f"{name}.delta", delta=text, **place, **more)

    def _event(self, kind: str, **fields: Any) -> Event:
        return {
            "type": kind,
            "output_index": len(self.items) - 1,
            "item_id": self.items[-1]["id"],
            **fields,
        }

    def _about_item(self, kind: str) -> Event:
        return {
            "type": kind,
            "output_index": len(self.items) - 1,
            "item": dict(self.items[-1]),
        }


def _message() -> Item:
    return {
        "id": new_id("msg"),
        "type": "message",
        "role": "assistant",
        "status": "in_progress",
        "content": [],
    }


def _reasoning() -> Item:
    return {
        "id": new_id("rs"),
        "type": "reasoning",
        "status": "in_progress",
        "summary": [],
        "content": [],
        "encrypted_content": None,
    }


def _function_call(start: ToolStart) -> Item:
    return {
        "id": new_id("fc"),
        "type": "function_call",
        "status": "in_progress",
        "call_id": start.id,
        "name": start.name,
        "arguments": "",
    }


def _output_text(text: str, logprobs: list[Any]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _reasoning_text(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}
