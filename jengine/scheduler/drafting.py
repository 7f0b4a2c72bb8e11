"""Speculative decoding in plans: which drafts run, and what follows from their acceptance.

In: draft tokens, or how many the device has made. Out: `Drafts` in plans; after a commit,
`num_computed` without the rejected drafts. Must not know how drafts are made or verified.

A row may have drafts in flight. `Request.num_computed` assumes that all are accepted, so the row's
true length is between that and its certain length (known tokens, plus one per plan in flight). A
plan's host drafts cover the continuation after each of these lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jengine.config import FREE_TOKENS
from jengine.counts import DraftCounts
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.plan import NO_DRAFTER, Drafts
from jengine.request import FINISHED, RUNNING, Request
from jengine.scheduler.draft_sources import DraftSource, OfferedDrafts
from jengine.scheduler.flights import Flight
from jengine.scheduler.plan_builder import PlanBuilder
from jengine.speculative.draft_length import (
    FIRST_ESTIMATE,
    FORGETTING_REQUESTS,
    DraftLength,
    best_size,
    may_pay,
    token_cost,
)

# Every so many steps drafts are probed though they do not seem to pay, as acceptance may have
# changed. Not more often: in a large batch such a step may take three times as long.
TRIAL_EVERY = 256


class Drafting:
    """Adds up to `most` drafts to each decode; the decodes of a step run at most `most_rows`
    tokens, in a step with prefill `mixed_rows`.

    `adaptive`: fewer drafts for rows whose drafts are rejected, and for all rows of a large batch.
    `sizes`: compiled numbers of decode tokens, to which a step is padded. `free_tokens`: tokens
    that a step computes in the time in which it reads the weights. `draft_cost`: time of making one
    draft, as a share of a step without drafts.
    """

    def __init__(
        self,
        source: DraftSource,
        cache: CacheCoordinator,
        *,
        most: int,
        most_rows: int,
        mixed_rows: int | None = None,
        sizes: tuple[int, ...] = (),
        adaptive: bool = True,
        free_tokens: int = FREE_TOKENS,
        draft_cost: float = 0.0,
    ) -> None:
        self.source = source
        self.most = most
        self.most_rows = most_rows
        self.mixed_rows = most_rows if mixed_rows is None else mixed_rows
        self._sizes = tuple(size for size in sizes if size <= most_rows)
        self.adaptive = adaptive
        self._plans = 0
        self._cache = cache
        self._free_tokens = free_tokens
        self._draft_cost = draft_cost
        self._rows: dict[str, RowDrafts] = {}
        self._has_old_drafts = False  # rows may expect drafts of older steps than their last
        self._usual = FIRST_ESTIMATE  # acceptance over ended requests
        self._drafts = 0
        self._drafted_at = [0] * most
        self._accepted_at = [0] * most

    @property
    def counts(self) -> DraftCounts:
        """Drafted and accepted tokens of all committed steps."""
        drafted, accepted = list(self._drafted_at), list(self._accepted_at)
        return DraftCounts(self._drafts, sum(drafted), sum(accepted), drafted, accepted)

    def lengthen(self, builder: PlanBuilder, num_waiting: int) -> None:
        """Add drafts to each decode, as budget and free blocks allow.

        If no draft can pay off, the draft model is not run.
        """
        self._close_finished(builder)
        self._plans += 1
        cost = token_cost(len(builder.decodes) + builder.prompt_tokens, self._free_tokens)
        cost += self._draft_cost
        if self._is_too_large(builder):
            # The rows are not examined, which in a large batch takes a noticeable share of the
            # step.
            builder.next_drafts = 0 if builder.chunks else NO_DRAFTER
            self._has_old_drafts = True
            return
        if self._has_old_drafts:
            self._drop_drafts(self._rows.values())
        rows = [self._row(request) for request in builder.decodes]
        wanted = [self._wanted(row, cost) for row in rows]
        if self._leaves_drafter_out(builder, rows, wanted):
            builder.next_drafts = NO_DRAFTER
            self._drop_drafts(rows)
            return
        if any(wanted):
            self._add_drafts(builder, rows, wanted)
        if self.source.on_device:
            builder.next_drafts = self._expect_drafts(builder, cost)

    def settle(self, flight: Flight, tokens: Sequence[Sequence[int]]) -> None:
        """Count accepted drafts, and subtract rejected ones from `num_computed`."""
        plan = flight.plan
        if not plan.drafts:
            return
        lengths = plan.entries.lengths[: plan.num_decodes].tolist()
        # Decodes come first, and all of them want tokens.
        for request, length, found in zip(flight.requests, lengths, tokens, strict=False):
            drafted, accepted = length - 1, len(found) - 1
            if not drafted:
                continue
            assert 0 <= accepted <= drafted, f"{len(found)} tokens of a decode of {length}"
            if request.status is RUNNING:
                request.num_computed -= drafted - accepted
            row = self._rows.get(request.request_id)
            if row is not None and row.request is request:
                row.observe(plan.step, drafted, accepted)
            self._drafts += 1
            for index in range(drafted):
                self._drafted_at[index] += 1
                self._accepted_at[index] += index < accepted

    def _is_too_large(self, builder: PlanBuilder) -> bool:
        """Whether the batch is too large for device drafts to pay off."""
        if not (self.source.on_device and self.adaptive):
            return False
        rows = len(builder.decodes) + len(builder.chunks)
        return not may_pay(token_cost(rows, self._free_tokens) + self._draft_cost)

    def _leaves_drafter_out(
        self, builder: PlanBuilder, rows: list[RowDrafts], wanted: list[int]
    ) -> bool:
        """Whether to skip the draft model in this step.

        Tokens that it has not read make its later drafts worse, so it always reads prompts, whose
        prefixes others may share.
        """
        source = self.source
        if any(wanted) or builder.chunks or not (source.on_device and self.adaptive):
            return False
        return not source.has_cache or all(row.has_given_up for row in rows)

    def _drop_drafts(self, rows: Iterable[RowDrafts]) -> None:
        """Mark that these rows' last steps have produced no drafts."""
        self._has_old_drafts = False
        for row in rows:
            row.offered.expect(0)

    def _add_drafts(self, builder: PlanBuilder, rows: list[RowDrafts], wanted: list[int]) -> None:
        """Add up to `wanted` drafts to each of the decodes' rows."""
        room = self._room(builder, rows, wanted)
        for row, count in zip(rows, wanted, strict=True):
            most = min(room, builder.budget)
            if most <= 0:
                break
            room -= self._add(row, min(most, count), builder)

    def _room(self, builder: PlanBuilder, rows: list[RowDrafts], wanted: list[int]) -> int:
        """Maximum drafts of the step, given what the rows want."""
        decodes = len(builder.decodes)
        if builder.prompt_tokens:
            return self.mixed_rows - decodes
        if not (self.adaptive and self._sizes) or self._plans % TRIAL_EVERY == 0:
            return self.most_rows - decodes
        gain = sum(row.length.gain(count) for row, count in zip(rows, wanted, strict=True))
        return best_size(decodes, sum(wanted), gain, self._sizes, self._free_tokens) - decodes

    def _expect_drafts(self, builder: PlanBuilder, cost: float) -> int:
        """Number of tokens that the device drafts for each row in this step: the largest that a row
        wants."""
        chunks = (request for request, _ in builder.chunks)
        rows = [self._row(request) for request in (*builder.decodes, *chunks)]
        count = max((self._wanted(row, cost) for row in rows), default=0)
        for row in rows:
            row.offered.expect(count)
        return count

    def _wanted(self, row: RowDrafts, cost: float) -> int:
        """Number of drafts that pay off for this row."""
        if not row.takes_any:
            return 0
        if not self.adaptive:
            return self.most
        tokens = row.request.num_known
        return 0 if tokens < row.look_at else min(self.most, row.length.count(cost, tokens))

    def _add(self, row: RowDrafts, most: int, builder: PlanBuilder) -> int:
        """Add drafts to one decode. Returns how many."""
        request = row.request
        # The last draft's token is at most the last but one that the request may get.
        start = request.num_computed
        count = min(most, request.cap - 2 - start)
        count = self._cache.drafts_end(start, start + 1 + count) - 1 - start if count > 0 else 0
        if count <= 0:
            return 0
        surely = request.num_known + request.num_in_flight  # tokens that it has at least
        count, window = row.window(count)
        blocks = self._cache.allocate(request, count + 1) if count else None
        if blocks is None:
            return 0
        builder.new_blocks += blocks
        builder.add_drafts(Drafts(request.row, surely, window), count)
        return count

    def _row(self, request: Request) -> RowDrafts:
        row = self._rows.get(request.request_id)
        if row is None or row.request is not request:
            row = RowDrafts(request, self.source, DraftLength(self.most, self._usual))
            self._rows[request.request_id] = row
        return row

    def _close_finished(self, builder: PlanBuilder) -> None:
        if len(self._rows) <= len(builder.decodes):
            return  # all of them run
        ended = [row for row in self._rows.values() if row.request.status is FINISHED]
        for row in ended:
            row.offered.close(row.request)
            if row.length.was_tried:
                self._usual += FORGETTING_REQUESTS * (row.length.estimate - self._usual)
            del self._rows[row.request.request_id]


# After so many lookups that found nothing to draft, the next ones are so many tokens apart: text
# that begins to repeat itself goes on doing so.
LOOKUPS_IN_VAIN, LONGEST_STRIDE = 8, 4


class RowDrafts:
    """One request's drafts, and its number of drafts.

    The host's drafts of steps up to `stale_until` were drafted before it knew that one before them
    was rejected, so they say little about the proposer.
    """

    __slots__ = (
        "goes_stale", "in_vain", "length", "look_at", "offered", "request", "stale_until",
        "takes_any",
    )  # fmt: skip

    def __init__(self, request: Request, source: DraftSource, length: DraftLength) -> None:
        self.request = request
        self.offered: OfferedDrafts = source.begin(request)
        self.takes_any = takes_drafts(request) and source.serves(request)
        self.length = length
        self.goes_stale = not source.on_device
        self.stale_until = -1
        self.in_vain = 0  # lookups that found nothing, one after the other
        self.look_at = 0  # tokens at which the next one is worth its time

    def window(self, count: int) -> tuple[int, list[int]]:
        """Drafts for a step that may run `count` of them, as `OfferedDrafts.window`."""
        count, window = self.offered.window(self.request, count)
        self.in_vain = 0 if count else self.in_vain + 1
        # Where a grammar forces tokens, those are the drafts, whatever was found before.
        if self.goes_stale and not self.request.reads_each_token:
            stride = min(self.in_vain // LOOKUPS_IN_VAIN, LONGEST_STRIDE)
            self.look_at = self.request.num_known + stride
        return count, window

    @property
    def has_given_up(self) -> bool:
        """Whether drafting for this request is suspended for long."""
        return not self.takes_any or self.length.has_given_up(self.request.num_known)

    def observe(self, step: int, drafted: int, accepted: int) -> None:
        """Record that the first `accepted` of a step's `drafted` tokens were accepted."""
        if step <= self.stale_until:
            return
        self.length.observe(drafted, accepted, self.request.num_known)
        if accepted < drafted and self.goes_stale:
            self.stale_until = self.request.last_step


def takes_drafts(request: Request) -> bool:
    """Whether a request may have drafts. Not with captures or logits processors: these must see
    only accepted tokens."""
    return not (request.wire.taps or request.wire.sampling.processors)
