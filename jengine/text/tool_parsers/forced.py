"""Tool calls enforced by a grammar: the answer is only JSON.

    [{"name": "get_weather", "parameters": {"city": "Oslo"}}]

or, if the request names the function, only its arguments. Text around the JSON, as from a server
that could not enforce it, is Content.
"""

from __future__ import annotations

from jengine.text.chat_parts import ChatPart, Content
from jengine.text.text_reader import (
    Parsing,
    TextReader,
    next_character,
    pass_rest,
    take_expected,
    take_run,
)
from jengine.text.tool_parsers.json_text import SEPARATORS, SPACE, parse_call_object, pass_value
from jengine.text.tool_parsers.tool_calls import Calls


def parse_forced_list(reader: TextReader, calls: Calls) -> Parsing[ChatPart, None]:
    opening = yield from take_run(reader, SPACE)
    if not (yield from take_expected(reader, "[")):
        yield Content(opening)
        yield from pass_rest(reader, Content)
        return
    while True:
        yield from take_run(reader, SEPARATORS)
        if not (yield from take_expected(reader, "{")):
            break
        yield from parse_call_object(reader, calls, "{")
    yield from take_expected(reader, "]")
    yield from pass_rest(reader, Content)


def parse_forced_arguments(reader: TextReader, calls: Calls, name: str) -> Parsing[ChatPart, None]:
    yield from take_run(reader, SPACE)
    if not (yield from next_character(reader)):
        return  # the answer ended before it began
    yield calls.start(name)
    yield from pass_value(reader, calls.arguments)
    yield from pass_rest(reader, Content)
