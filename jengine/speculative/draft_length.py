"""Adapts the number of drafts per row: more while they are accepted, none while they do not pay.

In: drafted and accepted counts per step, and the cost of a token. Out: the number for the next
step. Must not know proposers, plans or devices.

With acceptance probability a, a step with k drafts gives 1 + a + ... + a^k tokens and takes 1 + c *
k times as long, where c is the relative cost of one more token per row. The k with the highest rate
is used. At k = 0, drafts are retried after an exponentially growing number of tokens, so probing
stays cheap. A new request starts from the acceptance of earlier ones.
"""

from __future__ import annotations

from functools import lru_cache

# Weight of the newest draft in the estimate of the probability that one is accepted.
FORGETTING = 0.2
FIRST_ESTIMATE = 0.6
SHORTEST_PAUSE, LONGEST_PAUSE = 32, 512  # tokens without drafts, before one is tried again


# After so long a pause, drafts have failed several times in a row.
GIVEN_UP = 4 * SHORTEST_PAUSE
# Weight of a request that has ended in the estimate that the next one begins with.
FORGETTING_REQUESTS = 0.1

# A proposer of which more is accepted is too rare to wait for.
BEST_ACCEPTANCE = 0.8


def may_pay(cost: float) -> bool:
    """Whether a draft with this relative cost can pay at the best acceptance one may hope for."""
    return cost < BEST_ACCEPTANCE


def token_cost(tokens: int, free_tokens: int) -> float:
    """Relative cost of one more token per row in a step of `tokens` tokens. `free_tokens` is the
    number computed in the time it takes to read all weights (the roofline's ridge)."""
    return tokens / (free_tokens + tokens)


@lru_cache(maxsize=256)  # one step is mostly like the one before
def best_size(
    decodes: int, drafts: int, gain: float, sizes: tuple[int, ...], free_tokens: int
) -> int:
    """Compiled step size with the highest expected tokens per time, among those that fit all
    decodes.

    Each decode gives one token, and all drafts together `gain` more; drafts that do not fit are
    dropped.
    """

    def rate(size: int) -> float:
        share = min(1.0, (size - decodes) / drafts) if drafts else 0.0
        return (decodes + gain * share) / (free_tokens + size)

    return max((size for size in sizes if size >= decodes), key=rate)


class DraftLength:
    """Draft count controller of one row, at most `most` drafts.

    `estimate` is the estimated acceptance probability. Times are counted in the row's tokens.
    """

    __slots__ = ("_choice", "_cost", "_pause", "_until", "estimate", "most", "was_tried")

    def __init__(self, most: int, estimate: float = FIRST_ESTIMATE) -> None:
        self.most = most
        self.estimate = estimate
        self.was_tried = False
        self._cost = 0.0  # of a token, when it was last asked
        self._choice: int | None = None  # the best number at that cost, if it is known
        self._pause = SHORTEST_PAUSE
        self._until = 0  # before so many tokens no drafts are tried

    def count(self, cost: float, tokens: int) -> int:
        """Number of drafts for the next step, given the relative cost of a token per row."""
        if cost != self._cost:
            self._cost, self._choice = cost, None
        if tokens < self._until:
            return 0
        if self._choice is None:
            self._choice = self._best()
        return self._choice or 1

    def has_given_up(self, tokens: int) -> bool:
        """Whether the retry interval has grown so long that the row counts as having given up."""
        return tokens < self._until and self._pause >= GIVEN_UP

    def observe(self, drafted: int, accepted: int, tokens: int) -> None:
        """Update with a step's result: the first `accepted` of `drafted` drafts were accepted."""
        self.was_tried = True
        for _ in range(accepted):
            self.estimate += FORGETTING * (1.0 - self.estimate)
        if accepted < drafted:
            self.estimate -= FORGETTING * self.estimate
        self._choice = self._best()
        if self._choice:
            self._pause = SHORTEST_PAUSE
        elif tokens >= self._until:
            self._until = tokens + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def gain(self, count: int) -> float:
        """Expected number of accepted tokens from `count` drafts."""
        chance = self.estimate
        return chance * (1.0 - chance**count) / (1.0 - chance) if chance < 1.0 else float(count)

    def _best(self) -> int:
        """The draft count with the highest expected tokens per time; 0 for none."""
        best, best_rate = 0, 1.0
        tokens = power = 1.0
        for count in range(1, self.most + 1):
            power *= self.estimate
            tokens += power
            rate = tokens / (1.0 + self._cost * count)
            if rate > best_rate:
                best, best_rate = count, rate
        return best
