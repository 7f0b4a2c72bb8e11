"""Host proposers: they guess how a row goes on from the tokens that the host knows of it.

In: committed tokens. Out: draft tokens. A guess may be wrong: the step keeps a draft only if it is
the token that the row samples there anyway. Must not know requests, plans, or which of its guesses
were kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class RowProposer(Protocol):
    """Guesses for one request, from its first to its last token."""

    def extend(self, tokens: Sequence[int]) -> None:
        """These tokens were committed after the ones before."""

    def propose(self, count: int, ahead: int = 0) -> np.ndarray:
        """i32: at most `ahead` + `count` tokens that follow the committed ones; empty: no guess.

        The first `ahead` of them are being sampled by steps in flight. `count` is the most that the
        next step takes.
        """

    def close(self) -> None:
        """The request has ended."""


class Proposer(Protocol):
    """A method of guessing on the host, for all requests of an engine."""

    def begin(self, tokens: Sequence[int], prompt_length: int) -> RowProposer:
        """A request of which these tokens are known: its prompt, and outputs after it."""


class TokenText:
    """A sequence of tokens as an array that can grow."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._length = len(tokens)
        self._bytes, self._room = room_for(max(2 * self._length, 256))
        self._room[: self._length] = tokens

    def __len__(self) -> int:
        return self._length

    @property
    def tokens(self) -> np.ndarray:
        """i32: a view, valid until the next `extend`."""
        return self._room[: self._length]

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens."""
        end = self._length + len(tokens)
        if end > len(self._room):
            larger, numbers = room_for(2 * end)
            numbers[: self._length] = self.tokens
            self._bytes, self._room = larger, numbers
        self._room[self._length : end] = tokens
        self._length = end

    def repeats(self, count: int) -> bool:
        """Whether the last `count` tokens stand earlier in the text as well. In a text of some
        thousand tokens at most, a search of bytes is much faster than numpy."""
        if count >= self._length:
            return False
        end, place = 4 * self._length, -1
        last = self._bytes[end - 4 * count : end]
        while (place := self._bytes.find(last, place + 1, end - 4)) >= 0:
            if place % 4 == 0:
                return True
        return False


def room_for(tokens: int) -> tuple[bytearray, np.ndarray]:
    """Memory for so many tokens, as bytes and as i32."""
    room = bytearray(4 * tokens)
    return room, np.frombuffer(room, np.int32)


NO_DRAFTS = np.zeros(0, np.int32)
