"""n-gram proposer (prompt lookup): predicts that the text repeats what followed its last tokens
before.

The longest n-gram (prompt_lookup_max down to prompt_lookup_min) that ends the text is searched
earlier in it; the earliest occurrence counts. Drafts are the tokens after it; at the end of the
text they continue periodically. A lookup compares the whole text with its last token once in numpy,
then only the matching places. In short texts it first searches bytes for the shortest n-gram, since
steps of small models are as short as numpy calls.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jengine.speculative.proposer import NO_DRAFTS, TokenText

SHORT_TEXT = 4096  # tokens


class NgramProposer:
    """Proposer of n-grams of `least` to `most` tokens within each request's own text."""

    def __init__(self, least: int, most: int) -> None:
        self.least = least
        self.most = most

    def begin(self, tokens: Sequence[int], prompt_length: int) -> NgramRow:
        return NgramRow(self, tokens)


class NgramRow:
    """The text of one request."""

    def __init__(self, settings: NgramProposer, tokens: Sequence[int]) -> None:
        self._settings = settings
        self._text = TokenText(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        self._text.extend(tokens)

    def propose(self, count: int, ahead: int = 0) -> np.ndarray:
        tokens, least = self._text.tokens, self._settings.least
        if len(tokens) <= SHORT_TEXT and not self._text.repeats(least):
            return NO_DRAFTS
        start = after_match(tokens, least, self._settings.most)
        return NO_DRAFTS if start is None else np.resize(tokens[start:], ahead + count)

    def close(self) -> None:
        """Nothing is kept."""


def after_match(tokens: np.ndarray, least: int, most: int) -> int | None:
    """Position after the earliest occurrence of the longest n-gram that also ends the text, or
    None."""
    ends, length = np.flatnonzero(tokens[:-1] == tokens[-1:]), 1
    while len(ends) and length < min(most, len(tokens) - 1):
        before = ends[np.searchsorted(ends, length) :] - length
        agreeing = before[tokens[before] == tokens[-1 - length]] + length
        if not len(agreeing):
            break
        ends, length = agreeing, length + 1
    return int(ends[0]) + 1 if len(ends) and length >= least else None
