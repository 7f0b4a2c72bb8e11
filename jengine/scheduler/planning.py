"""Which requests run in the next step, and how many tokens of each.

In: the running and waiting requests, the budget of a PlanBuilder. Out: entries in the builder, with
blocks and rows for them. Must not know outputs, text or devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jengine.config import ScheduleConfig
from jengine.errors import RequestError
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.kvcache.prefix_lookup import PrefixHit
from jengine.media_spans import end_beside_images
from jengine.plan import KnownTokens, NewRow
from jengine.request import RUNNING, Request
from jengine.scheduler.flights import Flights
from jengine.scheduler.gates import AdmissionGate, first_awaited
from jengine.scheduler.lifecycle import Lifecycle
from jengine.scheduler.plan_builder import PlanBuilder
from jengine.scheduler.prompt_cuts import PromptCuts

# Maximum waiting requests parked per step, which bounds planning time.
MOST_PARKED = 8


class Planner:
    """Fills plans. `spacing` and `gates` are explained at `Scheduler`; `fail` ends a request."""

    def __init__(
        self,
        config: ScheduleConfig,
        cache: CacheCoordinator,
        requests: Lifecycle,
        flights: Flights,
        spacing: int,
        gates: Sequence[AdmissionGate],
        fail: Callable[[Request, RequestError], None],
    ) -> None:
        self._config = config
        self._cache = cache
        self._requests = requests
        self._flights = flights
        self._spacing = spacing
        self._gates, self._fail = gates, fail
        self._cuts = PromptCuts(config.prefill_sizes, config.full_step)
        self._budget_refused = 0  # budget with which the request at the head did not fit
        # The last prompt that must run whole and did not fit the budget.
        self._too_long: PrefixHit | None = None
        # Last plan, and the last before the one being built, that samples for a request whose every
        # token must be read before its next step (`reads_each_token`).
        self._read_step = self._read_before = -1

    def schedule_running(self, builder: PlanBuilder) -> None:
        """Plan running requests in order of start; one that cannot run is skipped."""
        running = self._requests.running
        self._cuts.limit(builder, self._requests)
        share = -(-len(running) // self._spacing)
        sampled = self._flights.next_step - self._spacing  # the last plan whose tokens can be run
        # Requests that read each token run in the same plans: two alternating groups would need
        # twice as many steps. Pipeline stages need several groups.
        wait = self._spacing == 1 and self._read_step > self._flights.committed
        self._read_before = self._read_step
        for request in tuple(running):
            if builder.budget <= 0:
                break
            if request.status is not RUNNING:
                continue  # preempted in this pass
            computed = request.num_computed
            if computed < request.known_at_admission:
                self._schedule_chunk(request, builder)
            elif computed + 1 >= request.cap:
                continue  # the tokens in flight reach the cap
            elif request.reads_each_token and (wait or request.num_in_flight):
                continue  # its last token is not read yet
            elif request.num_in_flight and request.last_step > sampled:
                continue  # its last token is not even sampled yet
            elif len(builder.decodes) >= share:
                continue  # the rest is for the pipeline's other plans
            elif computed < request.capacity or self._make_room(request, 1, builder):
                builder.decodes.append(request)
                builder.budget -= 1
                if request.reads_each_token:
                    self._read_step = self._flights.next_step
        # Only now: until here a planned request could still be preempted.
        for request, length in builder.chunks:
            self._publish(request, request.num_computed + length)

    def schedule_waiting(self, builder: PlanBuilder) -> None:
        """Admit waiting requests in order, up to the first that does not fit, so that none
        starves."""
        requests, num_parked = self._requests, 0
        while builder.prompt_budget >= builder.tile and num_parked < MOST_PARKED:
            request = requests.waiting.peek()
            if request is None:
                break
            try:
                awaited = first_awaited(self._gates, request)
            except RequestError as error:
                self._fail(request, error)
                continue
            if awaited is not None:
                num_parked += requests.waiting.park(request, awaited)
            elif not (requests.have_row_for(request) and self._admit(request, builder)):
                break

    def _schedule_chunk(self, request: Request, builder: PlanBuilder) -> None:
        """Plan the next prefill chunk of a running request."""
        length = self._chunk_length(request, request.num_computed, builder)
        if length and self._make_room(request, length, builder):
            self._add_chunk(request, request.num_computed, length, builder)
            if request.sent < request.known_at_admission:
                sent, request.sent = request.sent, request.known_at_admission
                builder.known.append(
                    KnownTokens(request.row, sent, request.token_ids[sent:].tolist())
                )

    def _admit(self, request: Request, builder: PlanBuilder) -> bool:
        """Admit the next waiting request with its first chunk, if row, blocks and budget
        suffice."""
        if self._still_too_long(request, builder):
            return False
        # With less budget a shorter chunk might fit.
        if builder.prompt_budget >= self._budget_refused and self._cache.still_lacks_room(request):
            return False
        hit = self._cache.find_prefix(request)
        length = self._chunk_length(request, hit, builder)
        if not length:
            if not self._runs_whole(request):
                return False  # an image that must run whole, or a state that must be kept
            self._too_long = self._cache.note_hit(request, hit)
            return False
        request.row = self._requests.free_rows[0]
        blocks = self._cache.allocate(request, length, hit)
        if blocks is None:
            request.row = -1
            self._budget_refused = builder.prompt_budget
            return False
        self._requests.start(request, hit)
        builder.new_rows.append(
            NewRow(
                request.row,
                request.token_ids.tobytes(),
                request.prompt_length,
                request.wire.sampling,
                request.wire.taps,
                request.sampler_row,
                request.adapter_slot,
                request.wire.adapter,
                request.wire.embeds,
                self._requests.encoder_cache.take(request, hit, self._cache.weights_version),
            )
        )
        builder.encode += self._requests.encoder_cache.take_new()
        builder.new_blocks += blocks
        builder.forks += self._cache.take_forks()
        self._add_chunk(request, hit, length, builder)
        # At once: an equal prompt later in this same step finds these blocks.
        self._publish(request, hit + length)
        return True

    def _still_too_long(self, request: Request, builder: PlanBuilder) -> bool:
        """Memo of `_too_long`, which saves a lookup per step: whether a prompt that must run
        unchunked still exceeds the budget. That changes only with the budget or a longer prefix
        hit."""
        last = self._too_long
        if last is None or not self._cache.finds_again(last, request):
            return False
        return request.num_known - last.tokens > builder.budget // builder.tile * builder.tile

    def _chunk_length(self, request: Request, start: int, builder: PlanBuilder) -> int:
        """Length of the chunk at `start`, by budget and cache; 0: none can run now."""
        budget = builder.prompt_budget // builder.tile * builder.tile
        length = self._wanted_length(request, start, builder.prompt_budget)
        if not length:
            return 0
        end = self._cache.chunk_end(start, start + length)
        media = request.wire.media
        return (end_beside_images(media, start, end, start + budget) if media else end) - start

    def _wanted_length(self, request: Request, start: int, budget: int) -> int:
        """Chunk length by budget alone: whole tiles, or all that remains; 0: does not fit."""
        tile = self._config.prefill_tile
        needed = request.num_known - start
        limit = budget // tile * tile
        if self._runs_whole(request):
            return needed if needed <= limit else 0
        threshold = self._config.long_prefill_token_threshold
        if threshold > 0 and len(self._requests.running) + len(self._requests.waiting) > 1:
            limit = min(limit, threshold)
        if needed <= limit:
            return needed
        return limit // tile * tile or limit

    def _runs_whole(self, request: Request) -> bool:
        """Whether the prompt must run unchunked. One that outgrew a step later need not."""
        fits_a_step = request.num_known <= self._config.largest_chunk
        return fits_a_step and not self._config.enable_chunked_prefill

    def _make_room(self, request: Request, length: int, builder: PlanBuilder) -> bool:
        """Allocate blocks for a running request, preempting others if needed. Returns False if the
        request itself was preempted or must wait for steps in flight."""
        while True:
            blocks = self._cache.allocate(request, length)
            if blocks is not None:
                builder.new_blocks += blocks
                return True
            is_alone = len(self._requests.running) == 1
            if is_alone and request.last_step > self._flights.committed:
                return False  # once its steps in flight are read, its window frees blocks
            victim = self._requests.order.victim(self._requests.running)
            builder.withdraw(victim)
            if not builder.reads:
                self._read_step = self._read_before
            builder.preempted = True
            self._requests.preempt(victim)
            if victim is request:
                return False

    def _add_chunk(self, request: Request, start: int, length: int, builder: PlanBuilder) -> None:
        builder.add_chunk(request, length)
        if request.reads_each_token and start + length == request.num_known:
            self._read_step = self._flights.next_step

    def _publish(self, request: Request, up_to: int) -> None:
        if min(up_to, request.num_known) >= request.publish_at:
            self._cache.publish(request, up_to)
