"""How many drafts a row gets: more while they are accepted, none while they do not pay.

In: numbers of drafts and of accepted ones, step by step, and what a token costs. Out: the number
for the next step. Must not know proposers, plans or devices.

A step with k drafts gives 1 + a + a^2 + ... + a^k tokens if each is accepted with probability a,
and takes 1 + c * k times as long as one without, where c is the share by which one more token of
each row lengthens the step. The number with the most tokens per time is taken. Where that is 0,
drafts are tried again after some tokens, and after twice as many each time they fail again: what
trying costs stays below a small share of the time. A request begins with what was accepted of
the requests before it, so that each does not have to find out again.
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
    """Whether a draft that lengthens a step by this share gives more than it takes, if it is
    accepted as often as can be hoped for."""
    return cost < BEST_ACCEPTANCE


def token_cost(tokens: int, free_tokens: int) -> float:
    """The share by which a step of so many tokens, one of each row, takes longer with one more of
    each. `free_tokens` are computed in the time in which a step reads all weights, which it takes
    anyway."""
    return tokens / (free_tokens + tokens)


@lru_cache(maxsize=256)  # one step is mostly like the one before
def best_size(
    decodes: int, drafts: int, gain: float, sizes: tuple[int, ...], free_tokens: int
) -> int:
    """The compiled size of a step that gives the most tokens per time: one for each decode, and
    `gain` if all drafts run, of which fewer run where they do not fit. Sizes with less room than
    the decodes take are not looked at."""

    def rate(size: int) -> float:
        share = min(1.0, (size - decodes) / drafts) if drafts else 0.0
        return (decodes + gain * share) / (free_tokens + size)

    return max((size for size in sizes if size >= decodes), key=rate)


class DraftLength:
    """The number of drafts of one row, at most `most`. `estimate`: of the probability that a draft
    is accepted. Times are numbers of the row's tokens."""

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
        """Drafts for the next step, if a token of each row costs this share of it."""
        if cost != self._cost:
            self._cost, self._choice = cost, None
        if tokens < self._until:
            return 0
        if self._choice is None:
            self._choice = self._best()
        return self._choice or 1

    def has_given_up(self, tokens: int) -> bool:
        """Whether drafts have failed so often that it will be long until they are tried again."""
        return tokens < self._until and self._pause >= GIVEN_UP

    def observe(self, drafted: int, accepted: int, tokens: int) -> None:
        """A step with drafts was read: of so many the first `accepted` were accepted."""
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
        """Tokens that so many drafts are expected to give."""
        chance = self.estimate
        return chance * (1.0 - chance**count) / (1.0 - chance) if chance < 1.0 else float(count)

    def _best(self) -> int:
        """The number with the most tokens per time; 0: no drafts."""
        best, best_rate = 0, 1.0
        tokens = power = 1.0
        for count in range(1, self.most + 1):
            power *= self.estimate
            tokens += power
            rate = tokens / (1.0 + self._cost * count)
            if rate > best_rate:
                best, best_rate = count, rate
        return best
