"""Grammar state of one answer.

In: the answer's tokens in order. Out: bitmasks over the vocabulary. Must not know plans or rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from jengine.outputs import Refusal
from jengine.structured_outputs import NAME

if TYPE_CHECKING:  # imported with the first grammar
    from llguidance import LLMatcher

ANY_TOKEN = np.int32(-1)  # a word of 32 allowed tokens
NOT_ALLOWED = "doesn't satisfy the grammar"  # llguidance's message for a rejected token


class Matcher:
    """Matcher of one answer.

    `ends` are the tokens that llguidance allows where the grammar may end; `stop_ids` are the
    request's own (without EOS under ignore_eos).
    """

    __slots__ = (
        "_begins_after",
        "_ends",
        "_grammar",
        "_latest",
        "_stops",
        "is_terminated",
        "refusal",
    )

    def __init__(
        self,
        grammar: LLMatcher,
        ends: Sequence[int],
        stop_ids: Sequence[int] = (),
        begins_after: Sequence[int] = (),
    ) -> None:
        self._grammar = grammar
        self._ends = frozenset([*ends, *stop_ids])
        # Word and bit of the stop ids that are not llguidance's end tokens.
        others = set(stop_ids) - set(ends)
        self._stops = [(one >> 5, np.uint32(1 << (one & 31))) for one in sorted(others)]
        self._begins_after = tuple(begins_after)
        self._latest: deque[int] = deque(maxlen=max(len(self._begins_after), 1))
        self.is_terminated = False  # complete; any token may follow
        self.refusal: Refusal | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the grammar applies now; before that, tokens of reasoning are free."""
        return not self._begins_after

    def advance(self, tokens: Sequence[int]) -> bool:
        """Advance by sampled tokens. Returns False if the grammar rejects one; `refusal` says
        why."""
        for token in tokens:
            if self.refusal:
                break
            if token >= 0 and not self.is_terminated:
                self._take(token)
        return self.refusal is None

    def _take(self, token: int) -> None:
        if not self.has_begun:
            self._latest.append(token)
            if tuple(self._latest) == self._begins_after:
                self._begins_after = ()
        elif token in self._ends and self._grammar.is_accepting():
            self.is_terminated = True
        elif not self._grammar.consume_token(token):
            self._fail(f"refuses token {token}")

    def copy(self) -> Matcher:
        """An independent copy of the state."""
        other = Matcher.__new__(Matcher)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other._grammar = self._grammar.deep_copy()
        other._latest = self._latest.copy()
        return other

    @property
    def deciding(self) -> LLMatcher | None:
        """The llguidance matcher that constrains the next token; None where any token is
        allowed."""
        return None if self.is_terminated or self.refusal or self._begins_after else self._grammar

    def fill(self, mask: np.ndarray) -> None:
        """Write the mask of allowed next tokens, i32[words]."""
        if self.deciding is None:
            mask.fill(ANY_TOKEN)
            return
        assert mask.flags.c_contiguous and mask.dtype == np.int32, "one row of a mask array"
        self._grammar.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self.settle(mask)

    def settle(self, mask: np.ndarray) -> None:
        """Adjust a mask computed by `deciding`: stop ids, and all tokens after an error."""
        if self.deciding is None:
            return
        if self._grammar.is_error():
            self._fail("cannot go on")
            mask.fill(ANY_TOKEN)
        elif self._stops:
            self._fill_stops(mask.view(np.uint32))

    def _fill_stops(self, bits: np.ndarray) -> None:
        """Allow stop ids exactly where the answer may end, or where nothing else is allowed."""
        if self._grammar.is_accepting():
            for word, bit in self._stops:
                bits[word] |= bit
            return
        kept = [bits[word] for word, _ in self._stops]
        for word, bit in self._stops:
            bits[word] &= ~bit
        if not bits.any():
            for (word, _), before in zip(self._stops, kept, strict=True):
                bits[word] = before

    def forced(self) -> list[int]:
        """Tokens that the grammar forces next (jump-ahead)."""
        return [] if self.deciding is None else self._grammar.compute_ff_tokens()

    def _fail(self, what: str) -> None:
        reason = " ".join(self._grammar.get_error().split())[:200]
        text = f"{NAME}: the grammar {what}: {reason or 'no reason is known'}."
        # Masks exclude rejected tokens; all other errors are exceeded limits of the request's
        # grammar.
        self.refusal = Refusal(text, by_request=NOT_ALLOWED not in reason)


class FailedMatcher:
    """Stand-in for a grammar that failed to compile: rejects the first token, which ends the
    request."""

    is_terminated = False

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal

    def advance(self, tokens: Sequence[int]) -> bool:
        return False

    def copy(self) -> FailedMatcher:
        return self

    deciding = None  # all tokens are allowed: none will be accepted

    def settle(self, mask: np.ndarray) -> None: ...

    def forced(self) -> list[int]:
        return []
