"""Counts reasoning tokens incrementally by the ids of the delimiters.

In: token ids. Out: a count. Only where each delimiter is a single token.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from jengine.text.chat_parser import end_of_reasoning
from jengine.text.reasoning_parsers import REASONING_PARSERS
from jengine.text.tokenizer import Tokenizer


class MarkIds(NamedTuple):
    """Ids of delimiters, which do not count, and those that end reasoning."""

    silent: frozenset[int]
    ends: frozenset[int]


class ReasoningTokens:
    """Reasoning token count of one answer."""

    def __init__(self, ids: MarkIds, *, inside: bool) -> None:
        """`inside`: the answer begins inside reasoning."""
        self.count = 0
        self._ids = ids
        self._inside = inside

    def push(self, token_ids: Iterable[int]) -> None:
        if not self._inside:
            return
        for token_id in token_ids:
            if token_id in self._ids.ends:
                self._inside = False
                return
            self.count += token_id not in self._ids.silent


def reasoning_tokens(tokenizer: Tokenizer, parser: str, prompt: str) -> ReasoningTokens | None:
    """A counter for an answer to this prompt; None if ids do not determine it."""
    ids = _mark_ids(tokenizer, parser)
    if ids is None:
        return None
    return ReasoningTokens(ids, inside=end_of_reasoning(parser, prompt) is not None)


@lru_cache(8)
def _mark_ids(tokenizer: Tokenizer, parser: str) -> MarkIds | None:
    marks = REASONING_PARSERS[parser].marks
    if marks is None:
        return None
    wanted = (marks.start, *marks.ends)
    found = {text: number for number, text in tokenizer.added_tokens.items() if text in wanted}
    if len(found) < len(wanted):
        return None
    silent = tokenizer.special_ids | {found[marks.start]}
    return MarkIds(silent, frozenset(found[text] for text in marks.ends))
