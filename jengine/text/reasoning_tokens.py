"""How many tokens of an answer are reasoning, counted as they come, by the ids of the marks.

In: token ids. Out: a count, the same in pieces and at once. Only where each mark is one token, as
in models that were trained to write them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from jengine.text.chat_parser import end_of_reasoning
from jengine.text.reasoning_parsers import REASONING_PARSERS
from jengine.text.tokenizer import Tokenizer


class MarkIds(NamedTuple):
    """The tokens that are no reasoning themselves, and those of them that end it."""

    silent: frozenset[int]
    ends: frozenset[int]


class ReasoningTokens:
    """The count of one answer."""

    def __init__(self, ids: MarkIds, *, inside: bool) -> None:
        """`inside`: whether the answer begins inside its reasoning."""
        self.count = 0
        self._ids = ids
        self._inside = inside

    def push(self, token_ids: Iterable[int]) -> None:
        """These tokens come next."""
        if not self._inside:
            return
        for token_id in token_ids:
            if token_id in self._ids.ends:
                self._inside = False
                return
            self.count += token_id not in self._ids.silent


def reasoning_tokens(tokenizer: Tokenizer, parser: str, prompt: str) -> ReasoningTokens | None:
    """A counter for an answer to this prompt; None where ids do not tell."""
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
