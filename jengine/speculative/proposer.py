"""Interface of host proposers, which draft a row's next tokens from the committed ones.

In: committed tokens. Out: draft tokens. A draft may be wrong: the step keeps a draft only if it
samples the same token. Must not know requests, plans, or which drafts were kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class RowProposer(Protocol):
    """Proposer of one request."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Append newly committed tokens."""

    def propose(self, count: int, ahead: int = 0) -> np.ndarray:
        """Draft up to `ahead` + `count` tokens after the committed ones, i32; empty for no draft.

        The first `ahead` are being sampled by steps in flight; the next step takes at most `count`.
        """

    def close(self) -> None:
        """The request has ended; release or keep its text."""


class Proposer(Protocol):
    """A model-free proposal method, for all requests of an engine."""

    def begin(self, tokens: Sequence[int], prompt_length: int) -> RowProposer:
        """Start a request whose known tokens are its prompt and outputs so far."""


class TokenText:
    """A growable i32 token array."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._length = len(tokens)
        self._bytes, self._room = room_for(max(2 * self._length, 256))
        self._room[: self._length] = tokens

    def __len__(self) -> int:
        return self._length

    @property
    def tokens(self) -> np.ndarray:
        """A view of the tokens, i32, valid until the next `extend`."""
        return self._room[: self._length]

    def extend(self, tokens: Sequence[int]) -> None:
        end = self._length + len(tokens)
        if end > len(self._room):
            larger, numbers = room_for(2 * end)
            numbers[: self._length] = self.tokens
            self._bytes, self._room = larger, numbers
        self._room[self._length : end] = tokens
        self._length = end

    def repeats(self, count: int) -> bool:
        """Whether the last `count` tokens also occur earlier. A byte search: for a few thousand
        tokens much faster than numpy."""
        if count >= self._length:
            return False
        end, place = 4 * self._length, -1
        last = self._bytes[end - 4 * count : end]
        while (place := self._bytes.find(last, place + 1, end - 4)) >= 0:
            if place % 4 == 0:
                return True
        return False


def room_for(tokens: int) -> tuple[bytearray, np.ndarray]:
    """Allocate space for `tokens` tokens, as bytes and as an i32 view."""
    room = bytearray(4 * tokens)
    return room, np.frombuffer(room, np.int32)


NO_DRAFTS = np.zeros(0, np.int32)
