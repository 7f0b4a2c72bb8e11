"""Admission: places in the bounded queue, taken before any work is done for a request.

In: how many completions and prompt tokens a request brings. Out: a ticket that holds their places
until it is released, or 503 with Retry-After. Used on the event loop only, so it needs no lock.
"""

from __future__ import annotations

from collections import Counter

from jengine.server.errors import ApiError


class Ticket:
    """The places of one request. Releasing it twice is harmless."""

    def __init__(self, admission: Admission, places: int) -> None:
        self._admission = admission
        self._places = places
        self._tokens = 0

    def bring(self, tokens: int) -> None:
        """Count the request's prompt tokens as waiting; refused if too many wait already."""
        self._admission.check_tokens(tokens)
        self._tokens += tokens
        self._admission.waiting_tokens += tokens

    def started(self) -> None:
        """The request has its first output: its prompt does not wait any more."""
        self._admission.waiting_tokens -= self._tokens
        self._tokens = 0

    def release(self) -> None:
        """Give the places back."""
        self.started()
        self._admission.taken -= self._places
        self._places = 0


class Admission:
    """How much may be in the engine or wait for it."""

    def __init__(self, most: int, most_tokens: int | None) -> None:
        self.most = most
        self.most_tokens = most_tokens
        self.taken = 0  # completions that run or wait
        self.waiting_tokens = 0  # of prompts without an output
        self.rejections: Counter[str] = Counter()  # by the setting that refused them

    def enter(self, places: int) -> Ticket:
        """Take places for a request of so many completions."""
        if self.taken + places > self.most:
            self.rejections["max_num_queued_reqs"] += 1
            raise ApiError(
                503,
                f"The queue is full: {self.taken} completions run or wait, this request asks for "
                f"{places} more, and at most {self.most} are allowed. Try again later, or raise "
                "--max-num-queued-reqs.",
            )
        self.taken += places
        return Ticket(self, places)

    def check_tokens(self, tokens: int) -> None:
        """Refuse a prompt if too many prompt tokens wait already."""
        if self.most_tokens is None or not self.waiting_tokens:
            return  # an empty queue takes any prompt: it could never enter otherwise
        if self.waiting_tokens + tokens > self.most_tokens:
            self.rejections["max_num_queued_tokens"] += 1
            raise ApiError(
                503,
                f"{self.waiting_tokens} prompt tokens wait, this request has {tokens} more, and at "
                f"most {self.most_tokens} are allowed. Try again later, or raise "
                "--max-num-queued-tokens.",
            )
