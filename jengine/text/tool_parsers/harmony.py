"""gpt-oss's harmony format: messages in channels, with reasoning and tool calls.

    <|channel|>analysis<|message|>I look it up.<|end|>
    <|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>
    {"city": "Oslo"}<|call|>

(without line breaks). The prompt ends with `<|start|>assistant`. Messages to `functions.` are
calls, the channel `analysis` is Reasoning, `final` and commentary without recipient are Content.
Messages to built-in tools are dropped. Unmarked text is Content.
"""

from __future__ import annotations

from jengine.text.chat_parts import AnswerContext, ChatPart, Content, Reasoning
from jengine.text.text_reader import Markers, Parsing, TextReader, collect_until
from jengine.text.tool_parsers.tool_calls import Calls

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_CONSTRAIN, _FUNCTIONS = "<|constrain|>", "functions."
_ENDS = Markers("<|end|>", "<|call|>", "<|return|>", _START)
_HEADER_END = Markers(_MESSAGE)
Kind = type[Content] | type[Reasoning]


def parse_harmony(reader: TextReader, calls: Calls | None) -> Parsing[ChatPart, None]:
    """Parse an answer's messages; calls are dropped if `calls` is None."""
    written: set[Kind] = set()
    while True:
        header, marker = yield from collect_until(reader, _HEADER_END)
        if not marker:
            if not any(mark in header for mark in (_START, _CHANNEL, _CONSTRAIN)):
                yield Content(header)
            return
        kind = _kind_of(header)
        if isinstance(kind, str):
            yield from _pass_call(reader, calls, kind)
        elif kind is None:
            yield from collect_until(reader, _ENDS)
        else:
            yield from _pass_text(reader, kind, written)


def parse_harmony_without_calls(
    reader: TextReader, given: AnswerContext
) -> Parsing[ChatPart, None]:
    """As a reasoning parser; the prompt is irrelevant, as every message names its channel."""
    return parse_harmony(reader, None)


def _kind_of(header: str) -> Kind | str | None:
    """Classify a message header: `Reasoning`, `Content`, the function name of a tool call, or None
    for a hidden message."""
    channel = recipient = ""
    for word in header.replace("<|", " <|").split():
        if word.startswith(_CHANNEL):
            channel = word.removeprefix(_CHANNEL)
        elif word.startswith("to="):
            recipient = word.removeprefix("to=")
    if name := recipient.removeprefix(_FUNCTIONS) if recipient.startswith(_FUNCTIONS) else "":
        return name
    if channel == "analysis":
        return Reasoning
    return Content if channel == "final" or not recipient else None


def _pass_text(reader: TextReader, kind: Kind, written: set[Kind]) -> Parsing[ChatPart, None]:
    """Yield a message, separated by a line break from an earlier one of its kind."""
    while True:
        text, marker = reader.take_until(_ENDS)
        if text and kind in written:
            yield kind("\n")
        if text:
            written.discard(kind)
            yield kind(text)
        if marker or reader.ended:
            written.add(kind)
            return
        yield None


def _pass_call(reader: TextReader, calls: Calls | None, name: str) -> Parsing[ChatPart, None]:
    if calls is None:
        yield from collect_until(reader, _ENDS)
        return
    yield calls.start(name)
    is_empty = True
    while True:
        text, marker = reader.take_until(_ENDS)
        is_empty = is_empty and not text
        yield calls.arguments("{}" if marker and is_empty else text)
        if marker or reader.ended:
            return
        yield None
