"""The content blocks of a message while its answer comes, and the events that tell of them.

In: the parts of an answer in their order. Out: blocks, and events. A whole message uses the same
code and drops the events, so that a stream adds up to it. Must not know engines or HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from jengine.text.chat_parser import ChatPart, Content, Reasoning, ToolArguments, ToolStart

Event = dict[str, Any]
Block = dict[str, Any]


class Blocks:
    """Content blocks of an Anthropic stream, in order; at most the last one is open."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._texts: list[str] = []  # of the open block
        self._is_open = False

    def add(self, part: ChatPart) -> Iterator[Event]:
        """Yield the events for the next message part."""
        match part:
            case Content(text):
                yield from self._open({"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": text})
            case Reasoning(text):
                yield from self._open({"type": "thinking", "thinking": "", "signature": ""})
                yield self._delta({"type": "thinking_delta", "thinking": text})
            case ToolStart(_, call_id, name):
                yield from self.close()
                yield from self._open(
                    {"type": "tool_use", "id": call_id, "name": name, "input": {}}
                )
                return
            case ToolArguments(_, text):
                yield self._delta({"type": "input_json_delta", "partial_json": text})
        self._texts.append(part.text)

    def close(self) -> Iterator[Event]:
        """Yield the events that close the open block, if there is one."""
        if not self._is_open:
            return
        self._is_open = False
        block, text = self.blocks[-1], "".join(self._texts)
        if block["type"] == "tool_use":
            block["input"] = _object(text)
        else:
            block[block["type"]] = text
        yield {"type": "content_block_stop", "index": len(self.blocks) - 1}

    def end(self) -> Iterator[Event]:
        """Yield the last block's closing events. A message without content gets one empty text
        block."""
        if not self.blocks:
            yield from self._open({"type": "text", "text": ""})
        yield from self.close()

    def _open(self, block: Block) -> Iterator[Event]:
        """Start a block of this kind, unless the open one is of that kind."""
        if self._is_open and self.blocks[-1]["type"] == block["type"]:
            return
        yield from self.close()
        self._is_open = True
        self._texts = []
        self.blocks.append(block)
        yield {
            "type": "content_block_start",
            "index": len(self.blocks) - 1,
            "content_block": dict(block),
        }

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": len(self.blocks) - 1, "delta": delta}


def _object(text: str) -> dict[str, Any]:
    """Parse a call's arguments; {} if they were cut off."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
