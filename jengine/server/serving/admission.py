"""Admission control: a bounded queue, entered before any work is done for a request.

In: a request's number of completions and prompt tokens. Out: a ticket that holds its places until
released, or 503 with Retry-After. Event loop only, so no lock. The limits hold for all API
processes together; processes that admit at the same moment may each exceed them by one request.
"""

from __future__ import annotations

from collections import Counter

from jengine.server.errors import ApiError
from jengine.server.peers.board import Board, BoardField


class Ticket:
    """A request's places in the queue. `release` is idempotent."""

    def __init__(self, admission: AdmissionBounds, places: int) -> None:
        self._admission = admission
        self._places = places
        self._tokens = 0

    def bring(self, tokens: int) -> None:
        """Count the prompt's tokens as waiting. Raises ApiError 503 if too many wait already."""
        self._admission.check_tokens(tokens)
        self._tokens += tokens
        self._admission.board.add(BoardField.WAITING_TOKENS, tokens)

    def started(self) -> None:
        """First output: the prompt's tokens no longer wait."""
        self._admission.board.add(BoardField.WAITING_TOKENS, -self._tokens)
        self._tokens = 0

    def release(self) -> None:
        self.started()
        self._admission.board.add(BoardField.TAKEN, -self._places)
        self._places = 0


class AdmissionBounds:
    """Bounds of running and waiting completions, and of waiting prompt tokens."""

    def __init__(self, most: int, most_tokens: int | None, board: Board) -> None:
        self.most = most
        self.most_tokens = most_tokens
        self.board = board  # counters of all API processes
        self.rejections: Counter[str] = Counter()  # by the setting that refused

    @property
    def taken(self) -> int:
        """Running and waiting completions of this process."""
        return self.board.own(BoardField.TAKEN)

    def enter(self, places: int) -> Ticket:
        """Take `places` in the queue. Raises ApiError 503 if it is full."""
        taken = self.board.total(BoardField.TAKEN)
        if taken + places > self.most:
            self.rejections["max_num_queued_reqs"] += 1
            raise ApiError(
                503,
                f"The queue is full: {taken} completions run or wait, this request asks for "
                f"{places} more, and at most {self.most} are allowed. Try again later, or raise "
                "--max-num-queued-reqs.",
            )
        self.board.add(BoardField.TAKEN, places)
        return Ticket(self, places)

    def check_tokens(self, tokens: int) -> None:
        """Refuse a prompt if too many prompt tokens wait already."""
        waiting = self.board.total(BoardField.WAITING_TOKENS)
        if self.most_tokens is None or not waiting:
            return  # an empty queue takes any prompt, or a long one could never enter
        if waiting + tokens > self.most_tokens:
            self.rejections["max_num_queued_tokens"] += 1
            raise ApiError(
                503,
                f"{waiting} prompt tokens wait, this request has {tokens} more, and at "
                f"most {self.most_tokens} are allowed. Try again later, or raise "
                "--max-num-queued-tokens.",
            )
