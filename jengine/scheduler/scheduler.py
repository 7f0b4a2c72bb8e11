"""The scheduler: which requests run in the next step, and what a step's tokens mean for them.

In: WireRequests, aborts, StepOutputs. Out: Plans, TokenDeltas. There is no prefill and no decode
phase: `computed` chases `known + in flight`, and a step hands out tokens so that it catches up.
Must not know: text, devices, how blocks are found.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

from jengine.config import ScheduleConfig
from jengine.errors import ConfigError, RequestError
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.outputs import StepOutput, TokenDelta
from jengine.plan import NewRow, Plan
from jengine.request import Request, Status, WireRequest
from jengine.scheduler.multi_step import MultiStepDecode
from jengine.scheduler.plan_builder import PlanBuilder
from jengine.scheduler.queue import waiting_queue
from jengine.scheduler.refusal import refuse_impossible
from jengine.scheduler.side_results import SideResults

NOT_FINITE = -1


class Pause(Enum):
    """What may run: everything, only what runs already, or nothing."""

    OFF = auto()
    NEW = auto()
    ALL = auto()


class Flight(NamedTuple):
    """A plan in flight, and the request behind each of its entries."""

    plan: Plan
    requests: list[Request]
    weights_version: int


class Scheduler:
    """Plans steps and commits their results, at most `depth` + 1 plans apart.

    `max_in_flight` is how many plans may sample tokens of one request that are not yet committed.
    `spacing` is how many plans further on a token that was sampled may be run before it is
    committed. More than 1 means that plans run beside each other, so that each takes its share of
    the rows.
    """

    def __init__(
        self,
        config: ScheduleConfig,
        cache: CacheCoordinator,
        *,
        depth: int = 1,
        max_in_flight: int | None = None,
        spacing: int = 1,
    ) -> None:
        if not 1 <= config.prefill_tile <= config.max_num_batched_tokens:
            raise ConfigError(
                f"max_num_batched_tokens={config.max_num_batched_tokens} holds no tile of "
                f"prefill_tile={config.prefill_tile} tokens; raise it."
            )
        self.config = config
        self.cache = cache
        self.depth = depth
        self.max_in_flight = depth + 1 if max_in_flight is None else max_in_flight
        self.spacing = spacing
        self._multi_step = MultiStepDecode(config.num_scheduler_steps, cache)
        self.pause = Pause.OFF
        self.num_preemptions = 0
        self._requests: dict[str, Request] = {}
        self._running: list[Request] = []
        self._waiting = waiting_queue(config.policy)
        self._side_results = SideResults()
        self._free_rows = list(range(config.max_num_seqs))
        self._released: list[int] = []
        self._flights: deque[Flight] = deque()
        self._next_step = 0
        self._committed_step = -1
        self._num_admitted = 0

    @property
    def num_running(self) -> int:
        """Requests that hold a row."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a row, preempted ones included."""
        return len(self._waiting)

    @property
    def has_unfinished(self) -> bool:
        """Whether any request still lacks its final answer."""
        return bool(self._requests)

    def knows(self, request_id: str) -> bool:
        """Whether this request still lacks its final answer."""
        return request_id in self._requests

    def add(self, wire: WireRequest, block_hashes: Sequence[bytes] = ()) -> None:
        """Queue a request, or raise a RequestError if it could never run.

        `block_hashes` are those of its first blocks, if somebody has asked this cache for them.
        """
        if wire.request_id in self._requests:
            raise RequestError(f"request_id={wire.request_id!r} is being answered already.")
        refuse_impossible(wire, self.config, self.cache)
        request = Request(wire, self.config.max_model_len, self._num_admitted)
        self._num_admitted += 1
        request.block_hashes = list(block_hashes)
        request.weights_version = self.cache.weights_version
        self._requests[request.request_id] = request
        self._side_results.expect(request)
        self._waiting.push(request)

    def abort(self, request_id: str) -> TokenDelta | None:
        """End a request in any state; None if it is unknown or has ended."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        delta = TokenDelta(
            request_id=request_id,
            token_ids=[],
            finish_reason="abort",
            num_cached_tokens=max(request.num_cached_tokens, 0),
            weights_version=self.cache.weights_version,
        )
        self._side_results.deliver(request, delta)
        if request.status is Status.RUNNING:
            self._running.remove(request)
        self._finish(request, "abort")
        return delta

    def reset(self) -> list[TokenDelta]:
        """Abort everything and forget the plans in flight; their results are no longer wanted."""
        deltas = [self.abort(request_id) for request_id in list(self._requests)]
        self._flights.clear()
        self._committed_step = self._next_step - 1
        self.cache.step_ended(self._committed_step)
        return [delta for delta in deltas if delta is not None]

    def reset_prefix_cache(self, *, preempt_running: bool = False) -> bool:
        """Forget all cached prefixes; False while blocks are in use (which preempting ends)."""
        if preempt_running:
            for request in reversed(tuple(self._running)):  # so that their order survives
                self._preempt(request)
        return self.cache.reset_prefix_cache()

    def set_weights_version(self, version: int) -> None:
        """Steps planned from now on use other weights."""
        self.cache.set_weights_version(version)

    def empty_plan(self) -> Plan:
        """A step that runs nobody, to see whether one runs at all. It is not committed."""
        plan = Plan(self._next_step, [], 0)
        self._next_step += 1
        return plan

    def schedule(self) -> Plan | None:
        """The next step: running requests first, waiting ones second. None: nothing can run now."""
        if len(self._flights) > self.depth or self.pause is Pause.ALL:
            return None
        builder = PlanBuilder(self.config.max_num_batched_tokens, self.config.prefill_tile)
        self._schedule_running(builder)
        # Only now: until here a planned request could still be preempted.
        for request, length in builder.chunks:
            self._publish(request, request.num_computed + length)
        if not builder.preempted and self.pause is Pause.OFF:
            self._schedule_waiting(builder)
        self._multi_step.lengthen(builder, len(self._waiting))
        return self._seal(builder)

    def commit(self, plan: Plan, output: StepOutput) -> list[TokenDelta]:
        """Give a plan's tokens to its requests, in the order the plans were made."""
        if not self._flights or self._flights[0].plan.step != plan.step:
            assert plan.step <= self._committed_step, f"step {plan.step} is committed out of order"
            return []  # forgotten by reset
        flight = self._flights.popleft()
        self._committed_step = plan.step
        self.cache.step_ended(plan.step)
        assert len(output.entries) == len(plan.entries), "one output for each entry"
        self._side_results.gather(plan, flight.requests, output)
        deltas = self._commit_tokens(flight, output)
        if any(delta.finish_reason is not None for delta in deltas):
            self._running = [r for r in self._running if r.status is Status.RUNNING]
        return deltas

    # Planning

    def _schedule_running(self, builder: PlanBuilder) -> None:
        """In list order; one that cannot run now does not hold up those after it."""
        share = -(-len(self._running) // self.spacing)
        sampled = self._next_step - self.spacing  # the last plan whose tokens can be run
        for request in tuple(self._running):
            if builder.budget <= 0:
                break
            if request.status is not Status.RUNNING:
                continue  # preempted in this pass
            computed = request.num_computed
            if computed < request.known_at_admission:
                self._schedule_chunk(request, builder)
            elif computed + 1 >= request.cap or request.num_in_flight >= self.max_in_flight:
                continue  # the tokens in flight reach the cap, or must come back first
            elif request.last_step > sampled and request.num_in_flight:
                continue  # its last token is not there yet
            elif len(builder.decodes) >= share:
                continue  # the others are the next plans' share
            elif computed < request.capacity or self._make_room(request, 1, builder):
                builder.decodes.append(request)
                builder.budget -= 1

    def _schedule_chunk(self, request: Request, builder: PlanBuilder) -> None:
        """The next chunk of a request whose row still runs tokens known at admission."""
        length = self._chunk_length(request, request.num_computed, builder.budget)
        if length and self._make_room(request, length, builder):
            builder.add_chunk(request, length)

    def _schedule_waiting(self, builder: PlanBuilder) -> None:
        """In queue order; the first that does not fit holds up those after it, on purpose."""
        passed_over = []
        while len(self._waiting) and self._free_rows and builder.budget >= builder.tile:
            if self._waiting.peek().last_step > self._committed_step:
                # Preempted, and steps in flight still carry tokens of it.
                passed_over.append(self._waiting.pop())
            elif not self._admit(self._waiting.peek(), builder):
                break
        for request in reversed(passed_over):
            self._waiting.restore(request)

    def _admit(self, request: Request, builder: PlanBuilder) -> bool:
        """Give the next waiting request a row and its first chunk, if both fit."""
        hit = self.cache.find_prefix(request)
        length = self._chunk_length(request, hit, builder.budget)
        if not length:
            return False
        request.row = self._free_rows[0]
        blocks = self.cache.allocate(request, length, hit)
        if blocks is None:
            request.row = -1
            return False
        self._waiting.pop()
        heapq.heappop(self._free_rows)
        self._start(request, hit)
        builder.new_rows.append(
            NewRow(
                request.row,
                list(request.token_ids),
                request.prompt_length,
                request.wire.sampling,
                request.wire.taps,
            )
        )
        builder.new_blocks += blocks
        builder.add_chunk(request, length)
        # At once: an equal prompt later in this same step finds these blocks.
        self._publish(request, hit + length)
        return True

    def _start(self, request: Request, hit: int) -> None:
        request.status = Status.RUNNING
        request.num_computed = request.num_processed = hit
        request.known_at_admission = request.num_known
        if request.num_cached_tokens < 0:
            request.num_cached_tokens = hit
        self._running.append(request)

    def _chunk_length(self, request: Request, start: int, budget: int) -> int:
        """Known tokens to run from `start`, up to where the cache lets a chunk end; 0: wait."""
        length = self._wanted_length(request, start, budget)
        return self.cache.chunk_end(start, start + length) - start if length else 0

    def _wanted_length(self, request: Request, start: int, budget: int) -> int:
        """Whole tiles, unless they end what is known."""
        tile = self.config.prefill_tile
        needed = request.num_known - start
        limit = budget // tile * tile
        if self._runs_whole(request):
            return needed if needed <= limit else 0
        threshold = self.config.long_prefill_token_threshold
        if threshold > 0 and len(self._running) + len(self._waiting) > 1:
            limit = min(limit, threshold)
        if needed <= limit:
            return needed
        return limit // tile * tile or limit

    def _runs_whole(self, request: Request) -> bool:
        """Without chunks; but one that outgrew a step before it was preempted has no other way."""
        fits_a_step = request.num_known <= self.config.largest_chunk
        return fits_a_step and not self.config.enable_chunked_prefill

    def _make_room(self, request: Request, length: int, builder: PlanBuilder) -> bool:
        """Blocks for a running request, preempting others or in the end itself."""
        while True:
            blocks = self.cache.allocate(request, length)
            if blocks is not None:
                builder.new_blocks += blocks
                return True
            if len(self._running) == 1 and request.last_step > self._committed_step:
                return False  # alone: its own steps in flight will let its window move on
            victim = self._victim()
            builder.withdraw(victim)
            builder.preempted = True
            self._preempt(victim)
            if victim is request:
                return False

    def _victim(self) -> Request:
        if self.config.policy == "priority":
            return max(self._running, key=lambda request: request.urgency)
        return self._running[-1]

    def _preempt(self, request: Request) -> None:
        """Back to the head of the queue, to be recomputed. Tokens known and in flight stay."""
        self._running.remove(request)
        self.cache.free(request)
        self._release_row(request)
        request.status = Status.PREEMPTED
        request.num_computed = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        self._waiting.restore(request)

    def _publish(self, request: Request, up_to: int) -> None:
        if min(up_to, request.num_known) >= request.publish_at:
            self.cache.publish(request, up_to)

    def _seal(self, builder: PlanBuilder) -> Plan | None:
        """Make the plan and count its tokens as computed, so that the next can be made at once."""
        if not builder.decodes and not builder.chunks:
            return None
        plan, requests = builder.seal(self._next_step, self._released)
        self._flights.append(Flight(plan, requests, self.cache.weights_version))
        self._released = []
        self._next_step += 1
        return plan

    # Committing

    def _commit_tokens(self, flight: Flight, output: StepOutput) -> list[TokenDelta]:
        deltas: list[TokenDelta] = []
        for request, entry, result in zip(
            flight.requests, flight.plan.entries, output.entries, strict=True
        ):
            if request.status is Status.RUNNING:
                request.num_processed = entry.start + entry.length
            if entry.wanted and request.status is not Status.FINISHED:
                delta = self._commit_own(request, result.tokens, flight)
                if result.logprobs is not None and delta.token_ids:
                    delta.logprobs = result.logprobs.cut(0, len(delta.token_ids))
                deltas.append(delta)
        return deltas

    def _commit_own(self, request: Request, tokens: list[int], flight: Flight) -> TokenDelta:
        """Append a request's sampled tokens as far as they count, and publish what they complete.

        The token that ended the request is never published: a multi-step decode stops where all
        rows have ended, so this token may not have run.
        """
        request.num_in_flight -= 1
        delta = TokenDelta(
            request_id=request.request_id,
            token_ids=[],
            num_cached_tokens=request.num_cached_tokens,
            weights_version=flight.weights_version,
        )
        ending = self._take_tokens(request, tokens, delta.token_ids)
        if ending == NOT_FINITE:
            self._fail(request, delta)
            return delta
        computed, known = request.num_computed, request.num_known - (ending is not None)
        if computed >= request.publish_at <= known and request.status is Status.RUNNING:
            self.cache.publish(request, min(computed, known))
        self._side_results.deliver(request, delta)
        if ending is not None or request.num_known >= request.cap:
            self._stop(request, ending, delta)
        return delta

    @staticmethod
    def _take_tokens(request: Request, tokens: list[int], taken: list[int]) -> int | None:
        """Append tokens up to the one that ends the request, which is returned if there is one."""
        for token in tokens:
            if token == NOT_FINITE:
                return token
            request.token_ids.append(token)
            taken.append(token)
            if token in request.ending_ids:
                return token
        return None

    def _stop(self, request: Request, ending: int | None, delta: TokenDelta) -> None:
        """End of sequence, then stop ids, then the length cap."""
        delta.finish_reason = "length" if ending is None else "stop"
        if ending is not None and ending not in request.wire.eos_token_ids:
            delta.stop_reason = ending
        request.stop_reason = delta.stop_reason
        self._finish(request, delta.finish_reason)

    def _fail(self, request: Request, delta: TokenDelta) -> None:
        """End one request whose logits were not finite; its blocks are never found again."""
        self.cache.distrust(request)
        delta.finish_reason = "error"
        delta.message = (
            f"The logits at position {request.num_known} were not finite, so no token could "
            "be sampled. Other requests are not affected; check the weights and the dtype."
        )
        self._side_results.deliver(request, delta)
        self._finish(request, "error")

    def _finish(self, request: Request, reason: str) -> None:
        """Free everything at once; what is in flight for it will be ignored.

        The caller takes it out of the running list: commit does so once for all that ended.
        """
        if request.status is not Status.RUNNING:
            self._waiting.remove(request)
        else:
            self.cache.free(request)
            self._release_row(request)
        request.status = Status.FINISHED
        request.finish_reason = reason
        del self._requests[request.request_id]
        self._side_results.forget(request)

    def _release_row(self, request: Request) -> None:
        heapq.heappush(self._free_rows, request.row)
        self._released.append(request.row)
        request.row = -1
