"""The scheduler: plans steps and commits their outputs.

In: WireRequests, aborts, StepOutputs. Out: Plans, TokenDeltas. Prefill and decode are not separate
phases: a plan gives each request tokens until its computed count reaches known + in flight. Must
not know: text, devices, how blocks are found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jengine.config import ScheduleConfig
from jengine.counts import Counts, ProgramTotals
from jengine.errors import ConfigError, RequestError
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.outputs import StepOutput, TokenDelta
from jengine.plan import NO_ENTRIES, Plan
from jengine.request import RUNNING, ReadPrompt, Request, WireRequest
from jengine.scheduler.adapter_slots import AdapterTurns
from jengine.scheduler.commit import Committer
from jengine.scheduler.decode_length import DecodeLength, decode_length_of
from jengine.scheduler.draft_sources import CheckDrafts
from jengine.scheduler.flights import Flight, Flights
from jengine.scheduler.gates import (
    AdmissionGate,
    BlocksLoaded,
    ImagesFit,
    MakeGate,
    NotInFlight,
    PrefixWritten,
)
from jengine.scheduler.lifecycle import Lifecycle
from jengine.scheduler.plan_builder import PlanBuilder, decode_order
from jengine.scheduler.planning import Planner
from jengine.scheduler.recorder import Recorder
from jengine.scheduler.refusal import refuse_impossible
from jengine.scheduler.transfers import BlockTransfers, NoTransfers

# Seconds that an engine rests at most while every request is parked and none is woken, and while
# one of them is parked for what no event tells.
LONGEST_REST, POLLED_REST = 0.05, 0.01


class Scheduler:
    """Plans steps and commits their results; at most `depth` plans are in flight while one is
    planned.

    `spacing`: plans between one that samples a token and the first that may run it. Above 1
    (pipeline stages) plans run side by side, so each takes its share of the rows. `gates` are the
    admission conditions besides rows, budget and cache. `decode_length` extends decodes beyond one
    token per plan; default: as `config` says, with `check_drafts` trimming drafts by grammar.
    `recorder` keeps statistics; replicas number theirs. `transfers` copies blocks to other memory
    and back.
    """

    def __init__(
        self,
        config: ScheduleConfig,
        cache: CacheCoordinator,
        *,
        depth: int = 1,
        spacing: int = 1,
        gates: Sequence[MakeGate] = (),
        decode_length: DecodeLength | None = None,
        check_drafts: CheckDrafts | None = None,
        recorder: Recorder | None = None,
        transfers: BlockTransfers | None = None,
    ) -> None:
        if not 1 <= config.prefill_tile <= config.max_num_batched_tokens:
            raise ConfigError(
                f"max_num_batched_tokens={config.max_num_batched_tokens} holds no tile of "
                f"prefill_tile={config.prefill_tile} tokens; raise it."
            )
        self.config = config
        self.cache = cache
        self.depth = depth
        self.spacing = spacing
        self.recorder = recorder or Recorder()
        self._requests = Lifecycle(config, cache, self.recorder)
        self._flights = Flights()
        self._order = decode_order(config.shared_blocks)
        self._adapters = AdapterTurns(
            self._requests.adapter_slots, self._requests.waiting, config.max_num_seqs
        )
        self._transfers = transfers or NoTransfers()
        self._transfers.use(self.recorder, self._requests.waiting.wake, config.max_num_seqs)
        self._planner = Planner(
            config, cache, self._requests, self._flights, spacing, self._gates(gates), self._fail
        )
        self._failed: list[TokenDelta] = []
        self._lengthening = decode_length or decode_length_of(config, cache, check_drafts)
        self._committer = Committer(
            cache,
            self._requests,
            self._lengthening,
            self.recorder,
            config.vocab_size,
            self._transfers,
        )
        self._num_arrived = 0

    def _gates(self, given: Sequence[MakeGate]) -> list[AdmissionGate]:
        requests, cache = self._requests, self.cache
        gates: list[AdmissionGate] = [NotInFlight(self._flights), PrefixWritten(cache)]
        if self.config.max_loras:
            gates.append(self._adapters)
        if self.config.encoder_tokens:
            gates.append(ImagesFit(requests.encoder_cache, cache))
        gates += [make(requests.waiting.wake) for make in given]
        # The last: the others say whether a request can run at all.
        return [*gates, BlocksLoaded(self._transfers, requests.have_row_for)]

    @property
    def num_running(self) -> int:
        """Requests that hold a row."""
        return len(self._requests.running)

    @property
    def num_waiting(self) -> int:
        """Requests without a row, preempted ones included."""
        return len(self._requests.waiting)

    @property
    def num_preemptions(self) -> int:
        return self._requests.num_preemptions

    @property
    def has_unfinished(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._requests.open)

    @property
    def patience(self) -> float:
        """Seconds for which steps may be skipped unless a request arrives, ends or is woken; 0: run
        the next one now."""
        waiting = self._requests.waiting
        if len(self._flights) or self.num_running or not waiting.num_parked or waiting.peek():
            return 0.0
        return POLLED_REST if waiting.is_polled else LONGEST_REST

    def when_woken(self, tell: Callable[[], object]) -> None:
        """Register a callback for wake-ups of parked requests, called in any thread."""
        self._requests.waiting.tell = tell

    def knows(self, request_id: str) -> bool:
        """Whether this request is unfinished."""
        return request_id in self._requests.open

    def schedule(self) -> Plan | None:
        """Plan the next step. None if nothing can run now."""
        began = self.recorder.clock()
        plan = None if len(self._flights) > self.depth else self._next_plan()
        self.recorder.planned(began)
        return plan

    def _next_plan(self) -> Plan | None:
        """Running requests first, then waiting ones."""
        config = self.config
        builder = PlanBuilder(config.max_num_batched_tokens, config.prefill_tile, self._order)
        self._planner.schedule_running(builder)
        if not builder.preempted:
            self._requests.waiting.hear()
            self._adapters.take_turns()
            self._planner.schedule_waiting(builder)
        self._lengthening.lengthen(builder, self.num_waiting)
        return self._seal(builder)

    def _seal(self, builder: PlanBuilder) -> Plan | None:
        """Build the plan and count its tokens as computed, so that the next can be planned."""
        idle = not builder.decodes and not builder.chunks
        builder.transfers = self._transfers.take(self._flights.next_step, idle=idle)
        if idle and builder.transfers is None:
            return None
        released = [] if idle else self._requests.take_released()
        plan, requests = builder.seal(self._flights.next_step, released)
        self._flights.begin(Flight(plan, requests, self.cache.weights_version))
        return plan

    def commit(self, plan: Plan, output: StepOutput) -> list[TokenDelta]:
        """Append a plan's sampled tokens to its requests; in the order of planning."""
        flight = self._flights.end(plan)
        if flight is None:
            return []  # forgotten by reset
        self.cache.step_ended(plan.step)
        self._transfers.done(plan.step, output)
        return self._committer.commit(flight, output)

    def add(self, wire: WireRequest, prompt: ReadPrompt | None = None) -> None:
        """Queue a request. Raises RequestError if it could never be scheduled.

        `prompt`: the result of `CacheCoordinator.read`, if already computed.
        """
        if self.knows(wire.request_id):
            raise RequestError(f"request_id={wire.request_id!r} is being answered already.")
        refuse_impossible(wire, self.config, self.cache)
        prompt = prompt or self.cache.read(wire)
        request = Request(wire, self.config.max_model_len, self._num_arrived, prompt)
        self._num_arrived += 1
        self._requests.arrive(request)
        awaited = self._adapters.awaited(request)
        if awaited is not None:  # at once, so that no step has to look at it
            self._requests.waiting.park(request, awaited)

    def abort(self, request_id: str) -> TokenDelta | None:
        """Abort a request. Returns its last delta, or None if it is unknown or has ended."""
        request = self._requests.open.get(request_id)
        if request is None:
            return None
        return self._end(request, "abort")

    def take_failed(self) -> list[TokenDelta]:
        """Final deltas of requests that gates have refused."""
        failed, self._failed = self._failed, []
        return failed

    def _fail(self, request: Request, error: RequestError) -> None:
        delta = self._end(request, "error")
        delta.message = str(error)
        self._failed.append(delta)

    def _end(self, request: Request, reason: str) -> TokenDelta:
        """Finish a request in any state; returns its final delta."""
        delta = TokenDelta(
            request_id=request.request_id,
            token_ids=[],
            finish_reason=reason,
            num_cached_tokens=max(request.num_cached_tokens, 0),
            weights_version=self.cache.weights_version,
            times=self.recorder.times(request),
        )
        self._requests.side_results.deliver(request, delta)
        if request.status is RUNNING:
            self._requests.running.remove(request)
        self._requests.finish(request)
        return delta

    def reset(self) -> list[TokenDelta]:
        """Abort all requests and forget the plans in flight, whose outputs will be ignored."""
        deltas = [self.abort(request_id) for request_id in list(self._requests.open)]
        self._requests.encoder_cache.reset()
        self._flights.forget()
        self._requests.side_results.forget_steps()
        self._transfers.reset()
        self.cache.step_ended(self._flights.committed)
        return [delta for delta in deltas if delta is not None]

    def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """Clear the prefix cache. Returns False while blocks are in use.

        With `reset_running_requests` running requests are preempted first and recomputed.
        """
        if reset_running_requests:
            self.preempt_all()
        is_empty = self.cache.reset_prefix_cache()
        if is_empty:
            self._transfers.forget()
        return is_empty

    def preempt_all(self) -> None:
        """Preempt all running requests, which frees their rows and blocks."""
        for request in reversed(tuple(self._requests.running)):  # so that their order survives
            self._requests.preempt(request)
        self._transfers.withdraw(idle=not len(self._flights))

    def set_weights_version(self, version: int) -> None:
        """Steps planned from now on run other weights, so cached blocks of the old ones are never
        hit."""
        self.cache.set_weights_version(version)

    def counts(self, programs: ProgramTotals) -> Counts:
        """Counts of requests, steps and the cache, with those of compiled programs."""
        recorder, prefixes, waiting = self.recorder, self.cache.stats, self.num_waiting
        external = self._transfers.hits
        return Counts(
            running=self.num_running,
            waiting=waiting,
            deferred=self._requests.waiting.num_parked,
            preemptions=self.num_preemptions,
            cache_usage=self.cache.usage,
            prefix_queries=prefixes.queries,
            prefix_hits=prefixes.hits,
            external_queries=external.queries,
            external_hits=external.hits,
            weights_version=self.cache.weights_version,
            drafts=self._lengthening.counts,
            copies=self._transfers.counts,
            programs=programs,
            block_times=self.cache.block_times,
            **recorder.numbers(),
        )

    def empty_plan(self) -> Plan:
        """A plan without entries, to probe that steps run. Must not be committed."""
        plan = Plan(self._flights.next_step, NO_ENTRIES, 0)
        self._flights.next_step += 1
        return plan
