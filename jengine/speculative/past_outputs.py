"""Bounded buffer of finished requests' outputs, indexed by token pairs.

Hash chains as in LZ77: for each pair of tokens its latest place, and for each place the previous
one with an equal hash. The oldest outputs are evicted first. Memory: at most 16 bytes per kept
token.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence

import numpy as np

from jengine.speculative.matches import Match, narrowed

SEPARATOR = -1  # after each output
MOST_PLACES = 256  # the latest places of a pair that are looked at
PAIR_BITS = 17


class PastOutputs:
    """Ring of up to `most_outputs` outputs with `most_tokens` tokens in all."""

    def __init__(self, most_outputs: int, most_tokens: int = 2**20) -> None:
        self.most_outputs = most_outputs
        self.most_tokens = most_tokens
        # Outputs follow each other; when the buffers are full, what is kept moves to their start.
        self._room = np.empty(2 * most_tokens, np.int32)
        self._before = array("i", bytes(4 * 2 * most_tokens))
        self._latest = array("i", [-1]) * 2**PAIR_BITS
        self._starts: deque[int] = deque()  # of the outputs
        self._end = 0

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def tokens(self) -> np.ndarray:
        """i32: all outputs concatenated, each followed by SEPARATOR."""
        return self._room[: self._end]

    def add(self, output: np.ndarray) -> None:
        """Keep an output, or the end of one that is too long."""
        output = output[-(self.most_tokens - 1) :]
        if not len(output) or not self.most_outputs:
            return
        if self._end + len(output) + 1 > len(self._room):
            self._move_to_start(len(output) + 1)
        self._starts.append(self._end)
        if len(self._starts) > self.most_outputs:
            self._starts.popleft()
        first, self._end = self._end, self._end + len(output) + 1
        self._room[first : self._end - 1] = output
        self._room[self._end - 1] = SEPARATOR
        self._index(first)

    def matches(self, last: np.ndarray) -> list[Match]:
        """Occurrences of at least the last two tokens, by growing match length."""
        if len(last) < 2 or not self._starts:
            return []
        tokens = self.tokens
        ends = np.array(self._places(int(pair_hashes(last[-2:])[0])), np.int64)[::-1]
        is_pair = (tokens[ends] == last[-1]) & (tokens[ends - 1] == last[-2])
        ends = ends[is_pair]
        return narrowed(tokens, ends, last, 2) if len(ends) else []

    def _places(self, pair: int) -> Sequence[int]:
        """Places in a pair's hash chain, latest first; hash collisions are included."""
        oldest, before, places = self._starts[0], self._before, []
        place = self._latest[pair]
        while place > oldest and len(places) < MOST_PLACES:
            places.append(place)
            place = before[place]
        return places

    def _index(self, first: int) -> None:
        """Insert the last output, which begins at `first`, into the hash chains."""
        latest, before = self._latest, self._before
        pairs = pair_hashes(self._room[first : self._end - 1]).tolist()
        for place, pair in enumerate(pairs, first + 1):
            before[place] = latest[pair]
            latest[pair] = place

    def _move_to_start(self, needed: int) -> None:
        """Evict the oldest outputs until `needed` more tokens fit, and compact the buffer."""
        while self._starts and self._end - self._starts[0] + needed > self.most_tokens:
            self._starts.popleft()
        gone = self._starts[0] if self._starts else self._end
        kept = self._end - gone
        self._room[:kept] = self._room[gone : self._end].copy()
        before, latest = (np.frombuffer(one, np.int32) for one in (self._before, self._latest))
        before[:kept] = np.maximum(before[gone : self._end] - gone, -1)
        latest[:] = np.maximum(latest - gone, -1)
        self._starts = deque(start - gone for start in self._starts)
        self._end = kept


def pair_hashes(tokens: np.ndarray) -> np.ndarray:
    """Hash of each (previous token, token) pair, from the second token on."""
    mixed = tokens[:-1].astype(np.uint32) * np.uint32(0x9E3779B1)
    mixed ^= tokens[1:].astype(np.uint32) * np.uint32(0x85EBCA6B)
    return (mixed ^ (mixed >> np.uint32(15))) & np.uint32(2**PAIR_BITS - 1)
