"""DeepSeek V3 and V3.1 tool calls.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
    ```json
    {"city": "Oslo"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

V3.1 puts the name before the separator and the arguments right after it. A call's end token ends it
wherever it occurs.
"""

from __future__ import annotations

from jengine.text.chat_parts import ChatPart, Content
from jengine.text.text_reader import (
    Markers,
    Parsing,
    TextParser,
    TextReader,
    collect_until,
    pass_rest,
    pass_until,
    take_run,
)
from jengine.text.tool_parsers.json_text import SPACE, pass_value
from jengine.text.tool_parsers.tool_calls import Calls

_CALLS, _END_CALLS = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _END_CALL = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_SEPARATOR = "<｜tool▁sep｜>"
_OUTSIDE = Markers(_CALLS, _END_CALLS, _CALL, _END_CALL)
_CALL_END = Markers(_END_CALL, _END_CALLS)
_BEFORE_ARGUMENTS = Markers("\n", "{")
_ARGUMENTS = Markers("{")


def parse_deepseek_v3(reader: TextReader, calls: Calls) -> Parsing[ChatPart, None]:
    """Alternate between Content and calls."""
    while marker := (yield from pass_until(reader, _OUTSIDE, Content)):
        if marker == _CALL:
            yield from _pass_call(reader, calls)


def _pass_call(reader: TextReader, calls: Calls) -> Parsing[ChatPart, None]:
    body: TextParser[ChatPart] = TextParser(lambda inner: _parse_body(inner, calls))
    while True:
        text, marker = reader.take_until(_CALL_END)
        yield from body.push(text)
        if marker or reader.ended:
            break
        yield None
    yield from body.finish()


def _parse_body(reader: TextReader, calls: Calls) -> Parsing[ChatPart, None]:
    first, separator = yield from collect_until(reader, Markers(_SEPARATOR))
    if not separator:
        yield Content(_CALL + first)
        return
    space = yield from take_run(reader, SPACE)
    second, end = yield from collect_until(reader, _BEFORE_ARGUMENTS)
    name = (second if second.strip() else first).strip()
    if not name or (second.strip() and not end):
        yield Content(_CALL + first + separator + space + second + end)
        yield from pass_rest(reader, Content)
        return
    yield calls.start(name)
    if end == "\n":
        _, end = yield from collect_until(reader, _ARGUMENTS)
    if end:
        yield from pass_value(reader, calls.arguments, opened=True)
