"""Reasoning between a start and an end tag, before the answer.

In: a model's text and its prompt's end. Out: Reasoning, then Content. The start tag is often at the
end of the prompt or omitted: then the answer begins inside reasoning. Must not know: tool calls,
except the tag that implies that reasoning is over.
"""

from __future__ import annotations

from typing import NamedTuple

from jengine.text.chat_parts import AnswerContext, ChatPart, Content, Reasoning
from jengine.text.text_reader import Markers, Parsing, TextReader, pass_rest, pass_until

THINK_START, THINK_END = "<think>", "</think>"
# Turn openers in prompts.
_TURNS = ("<|im_start|>", "<|start_header_id|>", "<｜Assistant｜>", "<start_of_turn>", "<|turn>")


class Tags(NamedTuple):
    """Delimiters; `call` is a tool call's tag, which ends reasoning too."""

    start: str = THINK_START
    end: str = THINK_END
    call: str | None = None
    drops_repeated_end: bool = False


DEEPSEEK_R1 = Tags()
QWEN3 = Tags(call="<tool_call>", drops_repeated_end=True)


def parse_deepseek_r1(reader: TextReader, given: AnswerContext) -> Parsing[ChatPart, None]:
    return _parse_thinking(reader, given.prompt, DEEPSEEK_R1)


def parse_qwen3(reader: TextReader, given: AnswerContext) -> Parsing[ChatPart, None]:
    return _parse_thinking(reader, given.prompt, QWEN3)


def _parse_thinking(reader: TextReader, prompt: str, tags: Tags) -> Parsing[ChatPart, None]:
    """Everything up to the end tag is Reasoning, unless the prompt has closed it."""
    if not prompt_has_ended_reasoning(prompt, tags.start, tags.end):
        inside = Markers(tags.start, tags.end, *([tags.call] if tags.call else []))
        while (marker := (yield from pass_until(reader, inside, Reasoning))) == tags.start:
            pass
        if tags.call and marker == tags.call:
            yield Content(marker)
    if tags.drops_repeated_end:
        while (yield from pass_until(reader, Markers(tags.end), Content)):
            pass
    yield from pass_rest(reader, Content)


def prompt_has_ended_reasoning(prompt: str, start: str, end: str) -> bool:
    """Whether the prompt's last turn has already closed its reasoning."""
    turn = max(prompt.rfind(mark) for mark in _TURNS)
    last = prompt[turn:] if turn >= 0 else prompt[-256:]
    closed = last.rfind(end)
    if turn < 0 and last[closed + len(end) :].strip():
        return False  # an earlier turn: in an unknown template only the very end counts
    return closed >= 0 and last.rfind(start) <= closed


def end_of_thinking(prompt: str) -> str | None:
    """The end tag, or None if the prompt has closed the reasoning."""
    return None if prompt_has_ended_reasoning(prompt, THINK_START, THINK_END) else THINK_END
