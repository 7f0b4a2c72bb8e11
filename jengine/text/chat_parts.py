"""Parts of a parsed answer, in the model's order. Plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Content(NamedTuple):
    """A piece of the visible answer."""

    text: str


class Reasoning(NamedTuple):
    """A piece of the reasoning."""

    text: str


class ToolStart(NamedTuple):
    """Start of a tool call; `index` counts the answer's calls from 0."""

    index: int
    id: str
    name: str


class ToolArguments(NamedTuple):
    """A piece of a call's arguments; a call's pieces concatenate to one JSON text."""

    index: int
    text: str


class AnswerContext(NamedTuple):
    """Context of an answer: its prompt, and the model's response template."""

    prompt: str = ""
    response_template: Mapping[str, Any] | None = None


ChatPart = Content | Reasoning | ToolStart | ToolArguments


def merge_parts(parts: Iterable[ChatPart]) -> list[ChatPart]:
    """Join adjacent parts of the same kind."""
    merged: list[ChatPart] = []
    texts: list[str] = []  # of the last part, which is joined once it is complete
    for part in parts:
        if isinstance(part, ToolStart):
            _join_last(merged, texts)
            merged.append(part)
        elif merged and not isinstance(merged[-1], ToolStart) and _continues(merged[-1], part):
            texts.append(part.text)
        elif part.text:
            _join_last(merged, texts)
            merged.append(part)
            texts = [part.text]
    _join_last(merged, texts)
    return merged


def _continues(last: Content | Reasoning | ToolArguments, part: ChatPart) -> bool:
    if isinstance(last, ToolArguments):
        return isinstance(part, ToolArguments) and part.index == last.index
    return type(part) is type(last)


def _join_last(merged: list[ChatPart], texts: list[str]) -> None:
    last = merged[-1] if merged else None
    if len(texts) > 1 and last is not None and not isinstance(last, ToolStart):
        merged[-1] = last._replace(text="".join(texts))
    texts.clear()
