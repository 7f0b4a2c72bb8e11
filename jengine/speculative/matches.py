"""Places of a text where the last tokens of another (or of itself) stand.

A set of such places is what a node of a suffix tree stands for. Longer matches have fewer places:
the sets are nested.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

MOST_PLACES = 1024  # the latest ones in a request's own text


class Match(NamedTuple):
    """Places where the last `length` tokens stand, by the position after them."""

    length: int
    places: np.ndarray  # growing


def own_matches(tokens: np.ndarray, depth: int) -> list[Match]:
    """Where a text's own last tokens, at most `depth`, stand before: see `narrowed`."""
    ends = np.flatnonzero(tokens[:-1] == tokens[-1:])[-MOST_PLACES:]
    return narrowed(tokens, ends, tokens[-depth:], 1)


def narrowed(text: np.ndarray, ends: np.ndarray, last: np.ndarray, length: int) -> list[Match]:
    """Matches by growing length, the longest one for each set of places.

    The last `length` tokens of `last` end at each of `ends`, the positions of their last token.
    """
    matches = []
    while len(ends) and length < len(last):
        back = length  # tokens from the one to compare now to the end
        before = ends[np.searchsorted(ends, back) :] - back
        agreeing = before[text[before] == last[-1 - back]] + back
        if len(agreeing) < len(ends):
            matches.append(Match(length, ends + 1))
        ends, length = agreeing, length + 1
    return [*matches, Match(length, ends + 1)] if len(ends) else matches
