"""Reasoning in a channel, as in Gemma 4.

    <|channel>thought
    I look it up.<channel|>The answer.

The model decides whether to think: without a channel everything is Content, unless the prompt ends
inside an open one. A tool call also ends reasoning.
"""

from __future__ import annotations

from jengine.text.chat_parts import AnswerContext, ChatPart, Content, Reasoning
from jengine.text.text_reader import Markers, Parsing, TextReader, pass_until, take_expected

_START, _END, _CALL = "<|channel>", "<channel|>", "<|tool_call>"
_TURNS = ("<|turn>", "<|tool_response>", _END, _CALL)
_INSIDE = Markers(_START, _END, _CALL)
_OUTSIDE = Markers(_START, _END)


def parse_gemma4(reader: TextReader, given: AnswerContext) -> Parsing[ChatPart, None]:
    """Parse channels to Reasoning, without their name; unmatched closing marks are dropped."""
    marker = _START if _ends_in_channel(given.prompt) else ""
    while marker := marker or (yield from pass_until(reader, _OUTSIDE, Content)):
        while marker == _START:
            yield from take_expected(reader, "thought\n")
            marker = yield from pass_until(reader, _INSIDE, Reasoning)
        if marker == _CALL:
            yield Content(marker)
        marker = ""


def _ends_in_channel(prompt: str) -> bool:
    return prompt.rfind(_START) > max(prompt.rfind(mark) for mark in _TURNS)


def end_of_channel(prompt: str) -> str | None:
    """The closing mark if the prompt ends inside a channel; else None, as the model need not open
    one."""
    return _END if _ends_in_channel(prompt) else None
