"""Occurrences in a text of another text's (or its own) last tokens.

A set of occurrences corresponds to a node of a suffix tree. Longer matches have fewer occurrences:
the sets are nested.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

MOST_PLACES = 1024  # the latest ones in a request's own text


class Match(NamedTuple):
    """Occurrences of the last `length` tokens, as positions after them."""

    length: int
    places: np.ndarray  # growing


def own_matches(tokens: np.ndarray, depth: int) -> list[Match]:
    """Earlier occurrences of a text's own last tokens, at most `depth` of them; see `narrowed`."""
    ends = np.flatnonzero(tokens[:-1] == tokens[-1:])[-MOST_PLACES:]
    return narrowed(tokens, ends, tokens[-depth:], 1)


def narrowed(text: np.ndarray, ends: np.ndarray, last: np.ndarray, length: int) -> list[Match]:
    """Extend matches of `length` tokens backwards; keep the longest match for each distinct set of
    occurrences.

    `ends` are the positions in `text` at which the last `length` tokens of `last` end.
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
