"""How many drafts a row gets: more while they are accepted, none while they do not pay.

In: numbers of drafts and of accepted ones, step by step, and what a token costs. Out: the number
for the next step. Must not know proposers, plans or devices.

A step with k drafts gives 1 + a + a^2 + ... + a^k tokens if each is accepted with probability a,
and takes 1 + c * k times as long as one without, where c is the share by which one more token of
each row lengthens the step. The number with the most tokens per time is taken. Where that is 0,
drafts are tried again after some tokens, and after twice as many each time they fail again: what
trying costs stays below a small share of the time.
"""

from __future__ import annotations

from collections.abc import Sequence

# Weight of the newest draft in the estimate of the probability that one is accepted.
FORGETTING = 0.2
FIRST_ESTIMATE = 0.6
SHORTEST_PAUSE, LONGEST_PAUSE = 32, 512  # tokens without drafts, before one is tried again


def token_cost(tokens: int, free_tokens: int) -> float:
    """The share by which a step of so many tokens, one of each row, takes longer with one more of
    each. `free_tokens` are computed in the time in which a step reads all weights, which it takes
    anyway."""
    return tokens / (free_tokens + tokens)


def best_size(
    decodes: int, drafts: int, gain: float, sizes: Sequence[int], free_tokens: int
) -> int:
    """The compiled size of a step that gives the most tokens per time: one for each decode, and
    `gain` if all drafts run, of which fewer run where they do not fit."""

    def rate(size: int) -> float:
        share = min(1.0, (size - decodes) / drafts) if drafts else 0.0
        return (decodes + gain * share) / (free_tokens + size)

    return max(sizes, key=rate)


class DraftLength:
    """The number of drafts of one row, at most `most`."""

    __slots__ = ("_cost", "_estimate", "_pause", "_resting", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self._cost = 0.0  # of a token, when it was last asked
        self._estimate = FIRST_ESTIMATE
        self._pause = SHORTEST_PAUSE
        self._resting = 0  # tokens until drafts are tried again

    def count(self, cost: float) -> int:
        """Drafts for the next step, if a token of each row costs this share of it."""
        self._cost = cost
        if self._resting > 0:
            return 0
        return self._best() or 1

    def observe(self, drafted: int, accepted: int) -> None:
        """A step was read: of so many drafts the first `accepted` were accepted."""
        self._resting = max(self._resting - 1 - accepted, 0)
        if not drafted:
            return
        for _ in range(accepted):
            self._estimate += FORGETTING * (1.0 - self._estimate)
        if accepted < drafted:
            self._estimate -= FORGETTING * self._estimate
        if self._best():
            self._pause = SHORTEST_PAUSE
        elif not self._resting:
            self._resting = self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def gain(self, count: int) -> float:
        """Tokens that so many drafts are expected to give."""
        return sum(self._estimate**place for place in range(1, count + 1))

    def _best(self) -> int:
        """The number with the most tokens per time; 0: no drafts."""
        best, best_rate = 0, 1.0
        tokens = power = 1.0
        for count in range(1, self.most + 1):
            power *= self._estimate
            tokens += power
            rate = tokens / (1.0 + self._cost * count)
            if rate > best_rate:
                best, best_rate = count, rate
        return best
