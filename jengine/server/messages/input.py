"""Converts Anthropic's messages to chat messages.

In: decoded JSON whose inner types are unchecked. Out: messages, or 400 with the path of the
offending value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from jengine.server.errors import ApiError

Block = dict[str, Any]


def chat_messages(
    system: str | Sequence[Block] | None, given: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Convert Anthropic's messages to OpenAI's; tool results become messages of role "tool"."""
    messages: list[dict[str, Any]] = []
    if system:
        messages.append({"role": "system", "content": _text(system, "system")})
    for index, message in enumerate(given):
        where = f"messages[{index}]"
        role = message.get("role")
        if role == "assistant":
            messages.append(_assistant(_blocks(message, where), where))
        elif role == "user":
            messages += _user(_blocks(message, where), where)
        elif role == "system":
            messages.append(
                {"role": "system", "content": _text(message.get("content"), f"{where}.content")}
            )
        else:
            raise ApiError(
                400,
                f"{where}.role is {role!r:.80}; expected user or assistant.",
                param=f"{where}.role",
            )
    return messages


def _blocks(message: dict[str, Any], where: str) -> list[Block]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        path = f"{where}.content"
        raise ApiError(400, f"{path}: expected a string or a list of blocks.", param=path)
    return content


def _assistant(blocks: Sequence[Block], where: str) -> dict[str, Any]:
    texts, thoughts, calls = [], [], []
    for number, block in enumerate(blocks):
        path = f"{where}.content[{number}]"
        kind = block.get("type")
        if kind == "text":
            texts.append(_string(block, "text", path))
        elif kind == "thinking":
            thoughts.append(_string(block, "thinking", path))
        elif kind == "tool_use":
            function = {
                "name": _string(block, "name", path),
                "arguments": json.dumps(block.get("input") or {}, ensure_ascii=False),
            }
            call = {"id": _string(block, "id", path), "type": "function", "function": function}
            calls.append(call)
        elif kind != "redacted_thinking":
            raise _unknown(kind, path)
    message: dict[str, Any] = {"role": "assistant"}
    if texts or not calls:
        message["content"] = "".join(texts)
    if thoughts:
        message["reasoning"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _user(blocks: Sequence[Block], where: str) -> Iterator[dict[str, Any]]:
    """Yield tool results first, as templates expect them right after the calls, then the text."""
    texts = []
    for number, block in enumerate(blocks):
        path = f"{where}.content[{number}]"
        kind = block.get("type")
        if kind == "text":
            texts.append({"type": "text", "text": _string(block, "text", path)})
        elif kind == "tool_result":
            yield {
                "role": "tool",
                "tool_call_id": _string(block, "tool_use_id", path),
                "content": _text(block.get("content") or "", f"{path}.content"),
            }
        else:
            raise _unknown(kind, path)
    if texts or not blocks:
        plain = texts[0]["text"] if len(texts) == 1 else texts or ""
        yield {"role": "user", "content": plain}


def _text(content: Any, where: str) -> str:
    """Return the text of a string or of text blocks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(400, f"{where}: expected a string or a list of blocks.", param=where)
    texts = []
    for number, block in enumerate(content):
        path = f"{where}[{number}]"
        if not isinstance(block, dict) or block.get("type") != "text":
            raise _unknown(block.get("type") if isinstance(block, dict) else None, path)
        texts.append(_string(block, "text", path))
    return "\n".join(texts)


def _string(block: Block, name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise ApiError(400, f"{where}.{name}: expected a string.", param=f"{where}.{name}")
    return value


def _unknown(kind: object, where: str) -> ApiError:
    return ApiError(
        400,
        f"{where} has type {kind!r:.80}, and this model reads text only. Leave it out.",
        param=where,
    )
