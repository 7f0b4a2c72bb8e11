"""Keeps a budget of reasoning: where it is spent, the tokens that end reasoning must follow.

In: the prompt's and the answer's tokens in order. Out: bit masks over the vocabulary, alone or on
top of a grammar's. Must not know plans or rows.

As in vLLM, reasoning is what follows the last start mark of prompt and answer together, unless an
end mark begins behind it. Tokens of the prompt count. An answer whose model leaves the start mark
out, and whose prompt has none, has no reasoning here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from jengine.grammar.masks import Follower
from jengine.outputs import Refusal
from jengine.thinking_budget import ThinkingBudget

if TYPE_CHECKING:  # imported when the first grammar is compiled
    from llguidance import LLMatcher

NOWHERE = -1


class BudgetFollower:
    """Follows one answer, from the end of its prompt on. `inner` follows its grammar, if it has
    one: while that decides which tokens may follow, reasoning ends only where it may."""

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
        # Places of the last marks that are complete, in prompt and answer.
        self._last_start = last_place(prompt, marks.start)
        self._last_end = last_place(prompt, marks.natural_end)
        self._tail_length = max(map(len, (marks.start, marks.natural_end, marks.forced_end)))
        self._tail = tuple(prompt[-self._tail_length :])

    @property
    def refusal(self) -> Refusal | None:
        """Why the grammar refuses the answer."""
        return None if self._inner is None else self._inner.refusal

    @property
    def is_terminated(self) -> bool:
        """Whether the answer is complete."""
        return self._stopped or (self._inner is not None and self._inner.is_terminated)

    @property
    def deciding(self) -> LLMatcher | None:
        """The grammar that says which tokens may follow, if there is one."""
        return None if self._inner is None else self._inner.deciding

    def advance(self, tokens: Sequence[int]) -> bool:
        """Take sampled tokens. False if the grammar refuses one."""
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
        """One that stands at the same place, and goes on alone."""
        other = BudgetFollower.__new__(BudgetFollower)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other._inner = None if self._inner is None else self._inner.copy()
        return other

    def settle(self, mask: np.ndarray) -> None:
        """Leave only the token that ends reasoning, where it must come and the grammar allows it;
        elsewhere the mask stays the grammar's."""
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
        """The tokens that must follow: those that the grammar forces while it decides, else those
        that end reasoning, as far as nothing else is to be decided between them."""
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
        """The next token of the forced end, which goes on where the answer has begun with it; None
        while there is no reasoning, or tokens are left, and after the answer's end."""
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
    """Whether the last tokens are these."""
    return not mark or tuple(tokens[-len(mark) :]) == tuple(mark)


def last_place(tokens: Sequence[int], mark: Sequence[int]) -> int:
    """Where the mark begins the last time that it occurs; `NOWHERE` if it does not."""
    if len(tokens) < len(mark):
        return NOWHERE
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(tokens), len(mark))
    places = np.flatnonzero((windows == np.asarray(mark)).all(axis=1))
    return int(places[-1]) if len(places) else NOWHERE
