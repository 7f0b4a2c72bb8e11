"""One request's drafts: where its guesses come from, and how many of them it tries.

In: guesses, and what came of the drafts before. Out: whether and what to guess now. Must not know
plans, budgets or blocks.
"""

from __future__ import annotations

from jengine.request import Request
from jengine.scheduler.guesses import Guesses, RowGuesses
from jengine.speculative.draft_length import DraftLength

# After so many lookups that found nothing to guess, the next ones are so many tokens apart: text
# that begins to repeat itself goes on doing so.
LOOKUPS_IN_VAIN, LONGEST_STRIDE = 8, 4


class RowDrafts:
    """One request's guesses, and its number of drafts.

    The host's drafts of steps up to `stale_until` were guessed before it knew that one before them
    was rejected, so they say little about the proposer.
    """

    __slots__ = (
        "goes_stale", "guesses", "in_vain", "length", "look_at", "request", "stale_until",
        "takes_any",
    )  # fmt: skip

    def __init__(self, request: Request, source: Guesses, length: DraftLength) -> None:
        self.request = request
        self.guesses: RowGuesses = source.begin(request)
        self.takes_any = takes_drafts(request) and source.serves(request)
        self.length = length
        self.goes_stale = not source.on_device
        self.stale_until = -1
        self.in_vain = 0  # lookups that found nothing, one after the other
        self.look_at = 0  # tokens at which the next one is worth its time

    def window(self, count: int) -> tuple[int, list[int]]:
        """Guesses for a step that may run `count` of them, as `RowGuesses.window`."""
        count, window = self.guesses.window(self.request, count)
        self.in_vain = 0 if count else self.in_vain + 1
        # Where a grammar forces tokens, those are the drafts, whatever was found before.
        if self.goes_stale and not self.request.reads_each_token:
            stride = min(self.in_vain // LOOKUPS_IN_VAIN, LONGEST_STRIDE)
            self.look_at = self.request.num_known + stride
        return count, window

    @property
    def has_given_up(self) -> bool:
        """Whether it will have no drafts for long."""
        return not self.takes_any or self.length.has_given_up(self.request.num_known)

    def observe(self, step: int, drafted: int, accepted: int) -> None:
        """Record that the first `accepted` of a step's `drafted` tokens were accepted."""
        if step <= self.stale_until:
            return
        self.length.observe(drafted, accepted, self.request.num_known)
        if accepted < drafted and self.goes_stale:
            self.stale_until = self.request.last_step


def takes_drafts(request: Request) -> bool:
    """Whether a request may have drafts: captured values are by token that counts, and logits
    processors see the tokens that count."""
    return not (request.wire.taps or request.wire.sampling.processors)
