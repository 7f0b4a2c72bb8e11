"""One chat choice as a message, and as deltas of a stream.

In: generated text, whole or in pieces. Out: a message or deltas. Both come from the same parser, so
a stream adds up to the message. Must not know engines or HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from jengine.outputs import CompletionOutput
from jengine.server.chat.types import Function, Message, ToolCall
from jengine.text.chat_parser import (
    ChatParser,
    ChatPart,
    Content,
    Reasoning,
    ToolArguments,
    ToolStart,
)
from jengine.text.reasoning_tokens import ReasoningTokens

# Names under which reasoning is sent: `reasoning`, `reasoning_content`.
ReasoningFields = Sequence[str]


class ChatAnswer:
    """Incremental parser of one choice: generated text to content, reasoning and tool calls."""

    def __init__(
        self,
        parser: ChatParser,
        *,
        reasoning_fields: ReasoningFields,
        shows_reasoning: bool,
        names_function: bool = False,
        forces_calls: bool = False,
        counter: ReasoningTokens | None = None,
    ) -> None:
        """`counter` counts reasoning tokens incrementally; None: text is tokenized again."""
        self._parser = parser
        self._fields = reasoning_fields
        self._shows_reasoning = shows_reasoning
        self.calls_tools = False
        self._arguments: dict[int, list[str]] = {}  # by call
        self._reasons = False  # whether any reasoning was generated, shown or not
        # With a function named in tool_choice, the finish reason stays "stop".
        self._names_function = names_function
        self._forces_calls = forces_calls  # then content is "" rather than null
        self.counter = counter
        self.thoughts: list[str] = []  # reasoning texts, shown or not, for lack of a counter

    def parts(self, new: CompletionOutput, *, ends: bool) -> list[ChatPart]:
        """Feed a text delta and return the message parts that can no longer change. `ends`: it is
        the last."""
        parts = self._parser.push(new.text)
        if ends:
            parts += self._parser.finish()
        if self.counter is not None:
            self.counter.push(new.token_ids)
        else:
            self.thoughts += [part.text for part in parts if isinstance(part, Reasoning)]
        self._note_calls(parts)
        self._reasons |= any(isinstance(part, Reasoning) for part in parts)
        hidden = () if self._shows_reasoning else Reasoning
        return [part for part in parts if not isinstance(part, hidden)]

    def _note_calls(self, parts: Iterable[ChatPart]) -> None:
        for part in parts:
            if isinstance(part, ToolStart):
                self.calls_tools = True
                self._arguments[part.index] = []
            elif isinstance(part, ToolArguments):
                self._arguments[part.index].append(part.text)

    def delta(self, new: CompletionOutput, *, ends: bool) -> dict[str, Any]:
        """Return OpenAI's `delta` object for a text delta; empty if nothing is to be sent."""
        parts = self.parts(new, ends=ends)
        delta: dict[str, Any] = {}
        content = joined(parts, Content)
        reasoning = joined(parts, Reasoning)
        if content:
            delta["content"] = content
        if reasoning:
            delta |= dict.fromkeys(self._fields, reasoning)
        if calls := call_deltas(parts):
            delta["tool_calls"] = calls
        return delta

    def message(self, whole: CompletionOutput, role: str, before: str) -> Message:
        """Parse a complete answer into a message; `before` is prepended to the content."""
        parts = self.parts(whole, ends=True)
        reasoning = joined(parts, Reasoning) or None
        calls = tool_calls(parts)
        content: str | None = before + joined(parts, Content)
        message = Message(role=role, content=content)
        if not content and (calls or self._reasons) and not self._forces_calls:
            message.content = None
        if calls:
            message.tool_calls = calls
        for field in self._fields:
            setattr(message, field, reasoning)
        return message

    def finish_reason(self, engines: str | None) -> str | None:
        """Map the engine's finish reason to OpenAI's: "stop" becomes "tool_calls" if all calls are
        valid JSON."""
        chose = self.calls_tools and not self._names_function
        if not chose or engines != "stop":
            return engines
        return "tool_calls" if all(map(is_json, self._arguments.values())) else "stop"


def is_json(pieces: Iterable[str]) -> bool:
    """Whether the concatenated argument deltas are one complete JSON document."""
    try:
        json.loads("".join(pieces))
    except (ValueError, RecursionError):
        return False
    return True


def joined(parts: Iterable[ChatPart], kind: type[Content] | type[Reasoning]) -> str:
    """Concatenate the text of all parts of one kind."""
    return "".join(part.text for part in parts if isinstance(part, kind))


def call_deltas(parts: Iterable[ChatPart]) -> list[dict[str, Any]]:
    """Group the parts into OpenAI's `tool_calls` deltas, one per call."""
    deltas: dict[int, dict[str, Any]] = {}
    for part in parts:
        if isinstance(part, ToolStart):
            deltas[part.index] = {
                "index": part.index, "id": part.id, "type": "function",
                "function": {"name": part.name, "arguments": ""},
            }  # fmt: skip
        elif isinstance(part, ToolArguments):
            entry = deltas.setdefault(
                part.index, {"index": part.index, "function": {"arguments": ""}}
            )
            entry["function"]["arguments"] += part.text
    return list(deltas.values())


def tool_calls(parts: Iterable[ChatPart]) -> list[ToolCall]:
    """Return the tool calls of a complete answer."""
    calls: dict[int, ToolCall] = {}
    for part in parts:
        if isinstance(part, ToolStart):
            calls[part.index] = ToolCall(id=part.id, function=Function(part.name, ""))
        elif isinstance(part, ToolArguments):
            calls[part.index].function.arguments += part.text
    return list(calls.values())
