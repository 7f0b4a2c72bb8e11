"""Converts input items of the Responses API to chat messages.

In: decoded JSON whose inner types are unchecked. Out: messages, or 400 with the path of the
offending value. Output items of earlier responses are valid input items.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jengine.server.errors import ApiError

Item = dict[str, Any]
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text", "refusal")


def input_items(given: str | Sequence[Item]) -> list[Item]:
    """Normalise `input` to a list of items."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return list(given)


def chat_messages(instructions: str | None, items: Sequence[Item]) -> list[dict[str, Any]]:
    """Convert items to chat messages. Consecutive reasoning, text and calls become one assistant
    message."""
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    for index, item in enumerate(items):
        _add_item(messages, item, f"input[{index}]")
    return messages


def _add_item(messages: list[dict[str, Any]], item: Item, where: str) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        _add_message(messages, item, where)
    elif kind == "reasoning":
        parts = item.get("content") or item.get("summary") or []
        _assistant(messages, "reasoning")["reasoning"] = _text(parts, f"{where}.content")
    elif kind == "function_call":
        function = {
            "name": _string(item, "name", where),
            "arguments": _string(item, "arguments", where),
        }
        call = {"id": _string(item, "call_id", where), "type": "function", "function": function}
        _assistant(messages).setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        output = item.get("output")
        messages.append(
            {
                "role": "tool",
                "tool_call_id": _string(item, "call_id", where),
                "content": _text(output, f"{where}.output"),
            }
        )
    else:
        raise ApiError(
            400,
            f"{where} has type {kind!r:.80}; expected message, reasoning, function_call or "
            "function_call_output.",
            param=where,
        )


def _add_message(messages: list[dict[str, Any]], item: Item, where: str) -> None:
    role = _string(item, "role", where)
    content = _text(item.get("content"), f"{where}.content")
    if role == "assistant":
        _assistant(messages, "content", "tool_calls")["content"] = content
    else:
        messages.append({"role": role, "content": content})


def _assistant(messages: list[dict[str, Any]], *new: str) -> dict[str, Any]:
    """Return the last message if it is an assistant's without any of the keys `new`; else append
    one."""
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or any(name in last for name in new):
        messages.append({"role": "assistant"})
    return messages[-1]


def _text(content: Any, where: str) -> str:
    """Return the text of a string or of content parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(400, f"{where}: expected a string or a list of parts.", param=where)
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _TEXTS:
            raise ApiError(
                400,
                f"{where}[{number}] has type {kind!r:.80}, and this model reads text only. Leave "
                "it out.",
                param=f"{where}[{number}]",
            )
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise ApiError(
                400, f"{where}[{number}].text: expected a string.", param=f"{where}[{number}].text"
            )
        texts.append(text)
    return "".join(texts)


def _string(item: Item, name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise ApiError(400, f"{where}.{name}: expected a string.", param=f"{where}.{name}")
    return value
