"""Drafts for the decodes of plans: which guesses run, and what comes of them.

In: guesses, or how many of them the device has made. Out: `Drafts` in plans, and after a commit
the tokens that were reserved for drafts and not accepted, taken back. Must not know how guesses are
made, or how the step accepts them.

A row may have drafts in flight. `Request.num_computed` counts all of them as accepted, so the row's
real length is between the tokens that it surely has (those known, and one for each plan in flight)
and that. The host's guesses of a plan cover the drafts after each of these lengths.
"""

from __future__ import annotations

from collections.abc import Sequence

from jengine.counts import DraftCounts
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.plan import Drafts
from jengine.request import FINISHED, RUNNING, Request
from jengine.scheduler.flights import Flight
from jengine.scheduler.guesses import Guesses, RowGuesses
from jengine.scheduler.plan_builder import PlanBuilder
from jengine.speculative.draft_length import DraftLength, best_size, token_cost

# About as many on a CPU. On a GPU `ScheduleConfig.full_step` says it.
FREE_TOKENS = 10
# After so many steps, drafts are tried that do not seem to pay: what is accepted may have changed.
# In a large batch such a step may take three times as long as another.
TRIAL_EVERY = 256


class RowDrafts:
    """One request's guesses, and its number of drafts.

    The host's drafts of steps up to `stale_until` were guessed before it knew that one before them
    was rejected, so they say little about the proposer.
    """

    __slots__ = ("goes_stale", "guesses", "length", "request", "stale_until")

    def __init__(
        self, request: Request, guesses: RowGuesses, length: DraftLength, *, goes_stale: bool
    ) -> None:
        self.request = request
        self.guesses = guesses
        self.length = length
        self.goes_stale = goes_stale
        self.stale_until = -1

    def observe(self, step: int, drafted: int, accepted: int) -> None:
        """A step was read: of so many drafts the first `accepted` were accepted."""
        is_stale = step <= self.stale_until
        self.length.observe(0 if is_stale else drafted, accepted)
        if accepted < drafted and self.goes_stale and not is_stale:
            self.stale_until = self.request.last_step


class Drafting:
    """Adds up to `most` drafts to each decode, and up to `most_rows` tokens to all decodes; to
    those of a step with prompts up to `mixed_rows`.

    `adaptive`: rows whose drafts are not accepted get fewer, and so do all of a large batch.
    `sizes`: compiled numbers of decode tokens; a step takes as long as the next one above its own.
    `free_tokens` are computed while a step reads all weights. `guess_cost` is what making a guess
    adds to a step, as a share of one without drafts.
    """

    def __init__(
        self,
        source: Guesses,
        cache: CacheCoordinator,
        *,
        most: int,
        most_rows: int,
        mixed_rows: int | None = None,
        sizes: tuple[int, ...] = (),
        adaptive: bool = True,
        free_tokens: int = FREE_TOKENS,
        guess_cost: float = 0.0,
    ) -> None:
        self.source = source
        self.most = most
        self.most_rows = most_rows
        self.mixed_rows = most_rows if mixed_rows is None else mixed_rows
        self.sizes = sizes
        self.adaptive = adaptive
        self._plans = 0
        self._cache = cache
        self._free_tokens = free_tokens
        self._guess_cost = guess_cost
        self._rows: dict[str, RowDrafts] = {}
        self._drafts = 0
        self._drafted_at = [0] * most
        self._accepted_at = [0] * most

    @property
    def counts(self) -> DraftCounts:
        """Drafts of all steps that were read."""
        drafted, accepted = list(self._drafted_at), list(self._accepted_at)
        return DraftCounts(self._drafts, sum(drafted), sum(accepted), drafted, accepted)

    def lengthen(self, builder: PlanBuilder, num_waiting: int) -> None:
        """Drafts for each decode, as far as budget and free blocks allow."""
        self._close_finished()
        self._plans += 1
        cost = token_cost(len(builder.decodes) + builder.prompt_tokens, self._free_tokens)
        cost += self._guess_cost
        rows = [self._row(request) for request in builder.decodes]
        wanted = [self._wanted(row, cost) for row in rows]
        room = self._room(builder, rows, wanted)
        for row, count in zip(rows, wanted, strict=True):
            most = min(room, builder.budget)
            if most <= 0:
                break
            room -= self._add(row, min(most, count), builder)
        if self.source.on_device:
            builder.guesses = self._expect_guesses(builder, cost)

    def settle(self, flight: Flight, tokens: Sequence[Sequence[int]]) -> None:
        """Count what was accepted, and take back what was reserved for the rest."""
        plan = flight.plan
        lengths = plan.entries.lengths[: plan.num_decodes].tolist()
        # Decodes come first, and all of them want tokens.
        for request, length, found in zip(flight.requests, lengths, tokens, strict=False):
            drafted, accepted = length - 1, len(found) - 1
            assert 0 <= accepted <= drafted, f"{len(found)} tokens of a decode of {length}"
            if request.status is RUNNING:
                request.num_computed -= drafted - accepted
            row = self._rows.get(request.request_id)
            if row is not None and row.request is request:
                row.observe(plan.step, drafted, accepted)
            if drafted:
                self._drafts += 1
                for index in range(drafted):
                    self._drafted_at[index] += 1
                    self._accepted_at[index] += index < accepted

    def _room(self, builder: PlanBuilder, rows: list[RowDrafts], wanted: list[int]) -> int:
        """The most drafts of the step, of which the decodes' rows want so many."""
        decodes = len(builder.decodes)
        if builder.prompt_tokens:
            return self.mixed_rows - decodes
        if not (self.adaptive and self.sizes) or self._plans % TRIAL_EVERY == 0:
            return self.most_rows - decodes
        gain = sum(row.length.gain(count) for row, count in zip(rows, wanted, strict=True))
        sizes = [size for size in self.sizes if decodes <= size <= self.most_rows]
        return best_size(decodes, sum(wanted), gain, sizes, self._free_tokens) - decodes

    def _expect_guesses(self, builder: PlanBuilder, cost: float) -> int:
        """How many tokens the step guesses for each of its rows: as many as one of them wants."""
        chunks = (request for request, _ in builder.chunks)
        rows = [self._row(request) for request in (*builder.decodes, *chunks)]
        count = max((self._wanted(row, cost) for row in rows), default=0)
        for row in rows:
            row.guesses.expect(count)
        return count

    def _wanted(self, row: RowDrafts, cost: float) -> int:
        """Drafts that are worth running."""
        if not takes_drafts(row.request):
            return 0
        return min(self.most, row.length.count(cost)) if self.adaptive else self.most

    def _add(self, row: RowDrafts, most: int, builder: PlanBuilder) -> int:
        """Drafts for one decode; returns how many."""
        request = row.request
        # The last draft's token is at most the last but one that the request may get.
        count = min(most, request.cap - 2 - request.num_computed)
        if count <= 0:
            return 0
        surely = request.num_known + request.num_in_flight  # tokens that it has at least
        count, window = row.guesses.window(request, count)
        blocks = self._cache.allocate(request, count + 1) if count else None
        if blocks is None:
            return 0
        builder.new_blocks += blocks
        builder.add_drafts(Drafts(request.row, surely, window), count)
        return count

    def _row(self, request: Request) -> RowDrafts:
        row = self._rows.get(request.request_id)
        if row is None or row.request is not request:
            row = RowDrafts(
                request,
                self.source.begin(request),
                DraftLength(self.most),
                goes_stale=not self.source.on_device,
            )
            self._rows[request.request_id] = row
        return row

    def _close_finished(self) -> None:
        ended = [row for row in self._rows.values() if row.request.status is FINISHED]
        for row in ended:
            row.guesses.close(row.request)
            del self._rows[row.request.request_id]


def takes_drafts(request: Request) -> bool:
    """Whether a request may have drafts: captured values are by token that counts, a grammar has a
    mask for the next token alone, and logits processors see the tokens that count."""
    wire = request.wire
    return not (wire.taps or wire.sampling.processors or request.reads_each_token)
