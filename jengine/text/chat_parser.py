"""Splits an assistant's answer into reasoning, content and tool calls.

In: text in pieces of any size. Out: the parts that are certain so far. Streams and whole answers
both use `ChatParser`, so they cannot differ. Never raises on a text. Must not know: tokens, HTTP.
Formats are in `reasoning_parsers` and `tool_parsers`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

from jengine.errors import ConfigError, nearest_name
from jengine.text.chat_parts import (
    AnswerContext,
    ChatPart,
    Content,
    Reasoning,
    ToolArguments,
    ToolStart,
    merge_parts,
)
from jengine.text.reasoning_parsers import REASONING_PARSERS
from jengine.text.text_reader import Parsing, TextParser, TextReader
from jengine.text.tool_parsers import TOOL_PARSERS
from jengine.text.tool_parsers.forced import parse_forced_arguments, parse_forced_list
from jengine.text.tool_parsers.tool_calls import Calls, argument_schemas, random_call_id

__all__ = [
    "ChatParser",
    "ChatPart",
    "Content",
    "ForcedCalls",
    "Reasoning",
    "ToolArguments",
    "ToolStart",
    "check_parser_names",
    "end_of_reasoning",
    "merge_parts",
    "needs_special_tokens",
    "reasoning_parser_names",
    "tool_parser_names",
]


def reasoning_parser_names() -> list[str]:
    return sorted(REASONING_PARSERS)


def tool_parser_names() -> list[str]:
    return sorted(TOOL_PARSERS)


def check_parser_names(reasoning_parser: str | None, tool_parser: str | None) -> None:
    """Raise ConfigError for unknown parsers, or two that exclude each other."""
    for option, name, known in (
        ("reasoning_parser", reasoning_parser, reasoning_parser_names()),
        ("tool_call_parser", tool_parser, tool_parser_names()),
    ):
        if name is not None and name not in known:
            raise ConfigError(
                f"{option} is {name!r}, which is not known.{nearest_name(name, known)} "
                f"Give one of: {', '.join(known)}."
            )
    included = TOOL_PARSERS[tool_parser].with_reasoning if tool_parser is not None else None
    if included is not None and reasoning_parser not in (None, included):
        raise ConfigError(
            f"tool_call_parser {tool_parser!r} reads reasoning, too, and does not go with "
            f"reasoning_parser {reasoning_parser!r}. Give {included!r}, or none."
        )


def needs_special_tokens(
    reasoning_parser: str | None, tool_parser: str | None, special: Collection[str]
) -> bool:
    """Whether these parsers need special tokens kept in the detokenized text, as some of their
    marks (or unknown ones) are special.

    `special`: the tokenizer's special tokens. If kept, clients see the other special tokens too.
    """
    found = list[Sequence[str]]()
    if reasoning_parser is not None:
        marks = REASONING_PARSERS[reasoning_parser].marks
        found.append(() if marks is None else (marks.start, *marks.ends))
    if tool_parser is not None:
        found.append(TOOL_PARSERS[tool_parser].marks)
    return any(not marks or any(mark in special for mark in marks) for marks in found)


class ForcedCalls(NamedTuple):
    """Format of an answer that a grammar restricts to tool calls: with `name` only that function's
    arguments, else a list of calls."""

    name: str | None = None

    def parse(self, reader: TextReader, calls: Calls) -> Parsing[ChatPart, None]:
        if self.name is None:
            return parse_forced_list(reader, calls)
        return parse_forced_arguments(reader, calls, self.name)


def end_of_reasoning(reasoning_parser: str | None, prompt: str) -> str | None:
    """Text that ends the reasoning of an answer to this prompt; None if it starts without
    reasoning."""
    if reasoning_parser is None:
        return None
    return REASONING_PARSERS[reasoning_parser].end(prompt)


@final
class ChatParser:
    """Parser of one answer: `push` each piece of text, then `finish`.

    - `reasoning_parser`, `tool_parser`: names as in vLLM's flags. None leaves reasoning or calls in
      the content; give no `tool_parser` if the request has no tools or wants no calls.
    - `tools`: the request's tools, whose schemas type arguments where the format has no types.
    - `prompt`: the rendered prompt (its end suffices); a template may have opened or closed
      reasoning.
    - `response_template`: the tokenizer's, for the parser `hf`.
    - `parallel_tool_calls`: False keeps only the first call.
    - `new_id`: makes call ids; default: the format's own form.
    - `forced`: the answer is JSON of calls enforced by a grammar; then give no `tool_parser`.

    Blank text between calls, or before the first one, is dropped.
    """

    def __init__(
        self,
        reasoning_parser: str | None = None,
        tool_parser: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        prompt: str = "",
        response_template: Mapping[str, Any] | None = None,
        parallel_tool_calls: bool = True,
        new_id: Callable[[], str] | None = None,
        forced: ForcedCalls | None = None,
    ) -> None:
        check_parser_names(reasoning_parser, tool_parser)
        given = AnswerContext(prompt, response_template)
        self._reasoning: TextParser[ChatPart] | None = None
        self._tools: TextParser[ChatPart] | None = None
        if reasoning_parser is not None:
            parse_reasoning = REASONING_PARSERS[reasoning_parser].parse
            self._reasoning = TextParser(lambda reader: parse_reasoning(reader, given))
        if tool_parser is not None:
            parse_tools = TOOL_PARSERS[tool_parser].parse
            new_id = new_id or TOOL_PARSERS[tool_parser].new_id
            calls = Calls(argument_schemas(tools or ()), new_id, given)
            if TOOL_PARSERS[tool_parser].with_reasoning is not None:
                self._reasoning = None  # the tool parser includes it
            self._tools = TextParser(lambda reader: parse_tools(reader, calls))
        if forced is not None:
            calls = Calls(new_id=new_id or random_call_id)
            self._tools = TextParser(lambda reader: forced.parse(reader, calls))
        self._only_first_call = not parallel_tool_calls
        self._blank: list[str] = []  # blank content, dropped if a call follows
        self._has_calls = self._has_content = False

    def push(self, text: str) -> list[ChatPart]:
        """Parts that are certain after this text."""
        return merge_parts(self._keep(self._parse(text)))

    def finish(self) -> list[ChatPart]:
        """Parts held back. A call truncated by the end stays truncated."""
        parts = list(self._keep(self._parse_end()))
        if self._blank and not self._has_calls:
            parts.append(Content("".join(self._blank)))
        return merge_parts(parts)

    def _parse(self, text: str) -> Iterable[ChatPart]:
        parts = [Content(text)] if self._reasoning is None else self._reasoning.push(text)
        return self._parse_calls(parts)

    def _parse_end(self) -> Iterator[ChatPart]:
        if self._reasoning is not None:
            yield from self._parse_calls(self._reasoning.finish())
        if self._tools is not None:
            yield from self._tools.finish()

    def _parse_calls(self, parts: Iterable[ChatPart]) -> Iterator[ChatPart]:
        for part in parts:
            if isinstance(part, Content) and self._tools is not None:
                yield from self._tools.push(part.text)
            else:
                yield part

    def _keep(self, parts: Iterable[ChatPart]) -> Iterator[ChatPart]:
        """Filter out blank content around calls, and unwanted calls."""
        for part in parts:
            if isinstance(part, ToolStart | ToolArguments):
                if not (self._only_first_call and part.index):
                    yield part
                self._blank, self._has_calls, self._has_content = [], True, False
            elif isinstance(part, Content) and self._tools is not None and not self._has_content:
                self._blank.append(part.text)
                if part.text.strip():
                    yield Content("".join(self._blank))
                    self._blank, self._has_content = [], True
            else:
                yield part
