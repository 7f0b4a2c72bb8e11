"""Suffix proposer: drafts the most frequent continuation of the text's last tokens.

The last tokens are looked up in the request's own text and in past outputs of other requests. A set
of occurrences acts as a suffix tree node: its size is the node's frequency and the following tokens
are its children, so the tree is walked without being built. From a match the most frequent next
token is taken repeatedly while the estimated probability of the whole draft is at least
`least_probability`; a match of n tokens gives at most `factor` * n drafts. Among matches, the draft
with the most expected accepted tokens wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jengine.speculative.matches import Match, own_matches
from jengine.speculative.past_outputs import PastOutputs
from jengine.speculative.proposer import NO_DRAFTS, TokenText

# Of the nested sets of occurrences, the longest matches that are tried: shorter ones give fewer
# drafts, by less similar contexts.
MATCHES_TRIED = 4


class Proposal(NamedTuple):
    """Draft tokens and the expected number accepted."""

    drafts: list[int]
    expected: float


class SuffixProposer:
    """Settings of the method, and the outputs of finished requests."""

    def __init__(
        self, depth: int, factor: float, least_probability: float, past: PastOutputs | None
    ) -> None:
        self.depth = depth
        self.factor = factor
        self.least_probability = least_probability
        self.past = past

    def begin(self, tokens: Sequence[int], prompt_length: int) -> SuffixRow:
        return SuffixRow(self, tokens, prompt_length)

    def best_proposal(
        self, text: np.ndarray, matches: list[Match], count: int, ahead: int
    ) -> Proposal:
        """Best draft over these matches, ordered by length."""
        best = Proposal([], 0.0)
        for match in reversed(matches[-MATCHES_TRIED:]):
            most = min(count, int(self.factor * match.length))
            if most > 0:
                proposal = walk(text, match.places, ahead + most, self.least_probability)
                best = max(best, proposal, key=lambda one: one.expected)
        return best


class SuffixRow:
    """The text of one request."""

    def __init__(self, settings: SuffixProposer, tokens: Sequence[int], prompt_length: int) -> None:
        self._settings = settings
        self._text = TokenText(tokens)
        self._prompt_length = prompt_length

    def extend(self, tokens: Sequence[int]) -> None:
        self._text.extend(tokens)

    def propose(self, count: int, ahead: int = 0) -> np.ndarray:
        settings, tokens = self._settings, self._text.tokens
        best = settings.best_proposal(tokens, own_matches(tokens, settings.depth), count, ahead)
        if settings.past is not None:
            matches = settings.past.matches(tokens[-settings.depth :])
            other = settings.best_proposal(settings.past.tokens, matches, count, ahead)
            best = max(best, other, key=lambda one: one.expected)
        return np.array(best.drafts, np.int32) if best.drafts else NO_DRAFTS

    def close(self) -> None:
        """Add the output to the buffer for later requests."""
        if self._settings.past is not None:
            self._settings.past.add(self._text.tokens[self._prompt_length :])


def walk(text: np.ndarray, places: np.ndarray, most: int, least_probability: float) -> Proposal:
    """Most frequent continuation after these places of a text.

    A negative token ends an output. A single occurrence is copied; at the end of the text the copy
    continues periodically.
    """
    drafts: list[int] = []
    probability, expected = 1.0, 0.0
    while len(drafts) < most:
        if len(places) == 1:
            copied = copied_from(text, int(places[0]), most - len(drafts), drafts)
            return Proposal(drafts + copied, expected + probability * len(copied))
        inside = places[places < len(text)]
        found, counts = np.unique(text[inside], return_counts=True)
        counts[found < 0] = 0
        if not counts.any():
            break
        best = int(counts.argmax())
        probability *= int(counts[best]) / len(places)
        if probability < least_probability:
            break
        drafts.append(int(found[best]))
        expected += probability
        places = inside[text[inside] == found[best]] + 1
    return Proposal(drafts, expected)


def copied_from(text: np.ndarray, place: int, most: int, before: list[int]) -> list[int]:
    """Copy from `place` until the output or `most` ends.

    `before` are the drafts so far, which precede `place`. If the text itself ends, it continues
    periodically with `before` and the copy.
    """
    copied = text[place : place + most]
    stops = np.flatnonzero(copied < 0)
    if len(stops):
        return copied[: stops[0]].tolist()
    period = [*before, *copied.tolist()]
    return [period[index % len(period)] for index in range(len(before), len(before) + most)]
