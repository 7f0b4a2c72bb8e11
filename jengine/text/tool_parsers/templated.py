"""Parses answers by the model's `response_template`.

In: text, the template, and the prompt, which may end inside a region. Out: Reasoning, Content and
calls. A call is reported when its region ends; invalid JSON is Content.
"""

from __future__ import annotations

import json

from jengine.text.chat_parts import AnswerContext, ChatPart, Content, Reasoning
from jengine.text.response_template import (
    CALLS,
    THINKING,
    Region,
    ResponseTemplate,
    calls_of,
    load_response_template,
)
from jengine.text.text_reader import (
    Markers,
    Parsing,
    TextReader,
    collect_until,
    pass_rest,
    pass_until,
)
from jengine.text.tool_parsers.tool_calls import Calls, to_json


def parse_templated(reader: TextReader, calls: Calls) -> Parsing[ChatPart, None]:
    return _parse(reader, calls.given, calls)


def parse_templated_without_calls(
    reader: TextReader, given: AnswerContext
) -> Parsing[ChatPart, None]:
    """As a reasoning parser: calls stay Content."""
    return _parse(reader, given, None)


def _parse(
    reader: TextReader, given: AnswerContext, calls: Calls | None
) -> Parsing[ChatPart, None]:
    template = load_response_template(given.response_template)
    region, mark = _region_at_end(template, given.prompt), ""
    while True:
        if region is template.outside:
            mark = yield from _pass_outside(reader, template)
            if not mark:
                return
            region = template.region_of(mark)
        elif region.name == CALLS:
            yield from _pass_calls(reader, region, mark, calls)
            region = template.outside
        else:
            kind = Reasoning if region.name == THINKING else Content
            if not region.closes:
                yield from pass_rest(reader, kind)
                return
            if not (yield from pass_until(reader, Markers(*region.closes), kind)):
                return
            region = template.outside


def _pass_outside(reader: TextReader, template: ResponseTemplate) -> Parsing[ChatPart, str]:
    """Yield text outside regions; return the mark that opens the next."""
    kind = Reasoning if template.outside.name == THINKING else Content
    closes = template.outside.closes
    if not template.opens and not closes:
        yield from pass_rest(reader, kind)
        return ""
    while True:
        mark = yield from pass_until(reader, Markers(*template.opens, *closes), kind)
        if mark not in closes or not mark:
            return mark


def _pass_calls(
    reader: TextReader, region: Region, mark: str, calls: Calls | None
) -> Parsing[ChatPart, None]:
    if region.closes:
        body, end = yield from collect_until(reader, Markers(*region.closes))
    else:
        texts = yield from _collect_rest(reader)
        body, end = texts, ""
    found = [] if calls is None else _calls_in(region, body)
    if calls is None or not found:
        yield Content(mark + body + end)
        return
    for name, arguments in found:
        yield from calls.whole(name, arguments)


def _collect_rest(reader: TextReader) -> Parsing[ChatPart, str]:
    texts: list[str] = []
    while not reader.ended:
        texts.append(reader.take())
        yield None
    return "".join([*texts, reader.take()])


def _calls_in(region: Region, body: str) -> list[tuple[str, str]]:
    try:
        found = calls_of(region, json.loads(body))
        return [
            (name, arguments if isinstance(arguments, str) else to_json(arguments))
            for name, arguments in found
        ]
    except (ValueError, RecursionError):
        return []


def _region_at_end(template: ResponseTemplate, prompt: str) -> Region:
    """Region that the prompt's end is in."""
    starts = [prompt.rfind(anchor) + len(anchor) for anchor in template.anchors if anchor in prompt]
    at, region = max(starts, default=len(prompt)), template.outside
    while True:
        marks = template.opens if region is template.outside else region.closes
        places = [(prompt.find(mark, at), mark) for mark in marks]
        found, mark = min((place for place in places if place[0] >= 0), default=(-1, ""))
        if found < 0:
            return region
        at = found + len(mark)
        region = template.region_of(mark) if region is template.outside else template.outside
