"""Enforces thinking budgets: once spent, the tokens that end reasoning are forced.

In: tokens of prompt and answer in order. Out: bitmasks, alone or combined with a grammar's. Must
not know plans or rows.

As in vLLM, reasoning starts at the last start mark in prompt and answer, unless an end mark
follows; tokens of the prompt count. A model that omits the start mark, with none in the prompt, has
no reasoning here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from jengine.grammar.mask_filler import Follower
from jengine.outputs import Refusal
from jengine.thinking_budget import ThinkingBudget

if TYPE_CHECKING:  # imported with the first grammar
    from llguidance import LLMatcher

NOWHERE = -1


class BudgetFollower:
    """Budget state of one answer. `inner` is its grammar's matcher, if any; while that constrains
    tokens, reasoning ends only where the grammar allows."""

    __slots__ = (
        "_budget",
        "_inner",
        "_last_end",
        "_last_start",
        "_length",
        "_stop_ids",
        "_stopped",
        "_tail",
        "_tail_length",
    )

    def __init__(
        self,
        budget: ThinkingBudget,
        prompt: Sequence[int],
        stop_ids: Collection[int] = (),
        inner: Follower | None = None,
    ) -> None:
        marks = budget.marks
        self._budget = budget
        self._inner = inner
        self._stop_ids = frozenset(stop_ids)
        self._stopped = False
        self._length = len(prompt)
        # Positions of the last complete marks in prompt and answer.
        self._last_start = last_place(prompt, marks.start)
        self._last_end = last_place(prompt, marks.natural_end)
        self._tail_length = max(map(len, (marks.start, marks.natural_end, marks.forced_end)))
        self._tail = tuple(prompt[-self._tail_length :])

    @property
    def refusal(self) -> Refusal | None:
        """The grammar's rejection, if any."""
        return None if self._inner is None else self._inner.refusal

    @property
    def is_terminated(self) -> bool:
        return self._stopped or (self._inner is not None and self._inner.is_terminated)

    @property
    def deciding(self) -> LLMatcher | None:
        return None if self._inner is None else self._inner.deciding

    def advance(self, tokens: Sequence[int]) -> bool:
        """Advance by sampled tokens. Returns False if the grammar rejects one."""
        for token in tokens:
            if token >= 0 and not self._stopped:
                self._take(token)
        return self._inner is None or self._inner.advance(tokens)

    def _take(self, token: int) -> None:
        marks = self._budget.marks
        self._length += 1
        self._tail = (*self._tail, token)[-self._tail_length :]
        if ends_with(self._tail, marks.start):
            self._last_start = self._length - len(marks.start)
        if ends_with(self._tail, marks.natural_end):
            self._last_end = self._length - len(marks.natural_end)
        self._stopped = token in self._stop_ids

    def copy(self) -> BudgetFollower:
        """An independent copy of the state."""
        other = BudgetFollower.__new__(BudgetFollower)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other._inner = None if self._inner is None else self._inner.copy()
        return other

    def settle(self, mask: np.ndarray) -> None:
        """Restrict a mask to the forced end's next token, if due and allowed by the grammar."""
        if self._inner is not None:
            self._inner.settle(mask)
        token = self._next_of_end()
        if token is None:
            return
        bits, word, bit = mask.view(np.uint32), token >> 5, np.uint32(1 << (token & 31))
        if bits[word] & bit:
            bits.fill(0)
            bits[word] = bit

    def forced(self) -> list[int]:
        """Tokens forced by the grammar, else by the spent budget."""
        if self._inner is not None and self._inner.deciding is not None:
            return self._inner.forced()
        found = list[int]()
        if self._next_of_end() is not None:
            ahead = self.copy()
            while ahead.deciding is None and (token := ahead._next_of_end()) is not None:
                ahead.advance([token])
                found.append(token)
        return found

    def _next_of_end(self) -> int | None:
        """Next token of the forced end, continuing one the answer has begun; None outside
        reasoning, with budget left, or after the answer."""
        if self.is_terminated or self.refusal:
            return None
        begin, end = self._last_start, self._budget.marks.forced_end
        if begin == NOWHERE or begin <= self._last_end:
            return None
        if self._length - begin - len(self._budget.marks.start) < self._budget.tokens:
            return None
        begun = next(n for n in range(len(end) - 1, -1, -1) if ends_with(self._tail, end[:n]))
        return end[begun]


def ends_with(tokens: Sequence[int], mark: Sequence[int]) -> bool:
    return not mark or tuple(tokens[-len(mark) :]) == tuple(mark)


def last_place(tokens: Sequence[int], mark: Sequence[int]) -> int:
    """Start of the mark's last occurrence, or `NOWHERE`."""
    if len(tokens) < len(mark):
        return NOWHERE
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(tokens), len(mark))
    places = np.flatnonzero((windows == np.asarray(mark)).all(axis=1))
    return int(places[-1]) if len(places) else NOWHERE
