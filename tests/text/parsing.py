"""How the tests of answer parsers run them: in given pieces, and on hostile text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from hypothesis import strategies as st

from jengine.text.chat_parser import ChatParser, merge_parts
from jengine.text.chat_parts import ChatPart, Content, Reasoning, ToolArguments, ToolStart

TEMPLATE = {
    "start_anchor": "assistant",
    "fields": {
        "thinking": {"open": "<think>", "close": "</think>"},
        "content": {},
        "tool_calls": {"open": "<tool_call>", "close": "</tool_call>", "content": "json"},
    },
}


def parse(
    pieces: str | Iterable[str],
    reasoning: str | None = None,
    tool_parser: str | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **options: Any,
) -> list[ChatPart]:
    """All parts of an answer; the calls' ids are a, b, c ..."""
    ids = (chr(ord("a") + number % 26) for number in count())
    options.setdefault("new_id", lambda: next(ids))
    options.setdefault("response_template", TEMPLATE)
    parser = ChatParser(reasoning, tool_parser, tools, **options)
    parts: list[ChatPart] = []
    for piece in [pieces] if isinstance(pieces, str) else pieces:
        parts += parser.push(piece)
    return merge_parts([*parts, *parser.finish()])


def content(parts: Iterable[ChatPart]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Content))


def reasoning(parts: Iterable[ChatPart]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Reasoning))


def calls(parts: Iterable[ChatPart]) -> list[tuple[str, str]]:
    """Name and arguments of each call."""
    found: list[list[str]] = []
    for part in parts:
        if isinstance(part, ToolStart):
            assert part.index == len(found), "calls are numbered from 0"
            found.append([part.name, ""])
        elif isinstance(part, ToolArguments):
            assert part.index == len(found) - 1, "arguments follow the start of their call"
            found[-1][1] += part.text
    return [(name, arguments) for name, arguments in found]


def pieces_of(text: str, cuts: Iterable[int]) -> list[str]:
    """The text, cut at these places."""
    ends = sorted({cut % (len(text) + 1) for cut in cuts})
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


def hostile(words: Sequence[str]) -> st.SearchStrategy[str]:
    """Texts of a format's words, of parts of them, and of anything else."""
    parts = [word[:cut] for word in words for cut in (1, len(word) // 2, len(word) - 1)]
    syllables = st.sampled_from([*words, *parts, *"\"\\{}[](),:=\n <>'ax1", "é", "\ud800", "日"])
    return st.lists(syllables | st.text(max_size=3), max_size=40).map("".join)


def growth(run: Callable[[str], object], unit: str, start: str = "", length: int = 1000) -> float:
    """How much longer a text of eight times the length takes, in time of the processor."""

    def seconds(repeats: int) -> float:
        text = start + unit * repeats
        times = []
        for _ in range(2):
            begin = time.process_time()
            run(text)
            times.append(time.process_time() - begin)
        return min(times)

    repeats = max(1, length // len(unit))
    return seconds(8 * repeats) / max(seconds(repeats), 2e-4)
