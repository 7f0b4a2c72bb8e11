"""Requests by status: waiting, running in a row, preempted, finished.

In: requests. Out: who runs and who waits, and released rows. Frees a request's blocks when it
leaves its row. Must not know budgets, plans or outputs.
"""

from __future__ import annotations

import heapq

from jengine.config import ScheduleConfig
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.request import FINISHED, PREEMPTED, RUNNING, Request
from jengine.scheduler.adapter_slots import AdapterSlots
from jengine.scheduler.encoder_cache import EncoderCache
from jengine.scheduler.orders import order_of
from jengine.scheduler.queue import WaitingQueue
from jengine.scheduler.recorder import Recorder
from jengine.scheduler.side_results import SideResults


class Lifecycle:
    """All unfinished requests, by status: waiting, running, preempted."""

    def __init__(self, config: ScheduleConfig, cache: CacheCoordinator, recorder: Recorder) -> None:
        self.cache = cache
        self.recorder = recorder
        self.open: dict[str, Request] = {}
        self.running: list[Request] = []
        self.order = order_of(config.policy)
        self.waiting = WaitingQueue(self.order)
        self.side_results = SideResults(cache.records)
        self.free_rows = list(range(config.max_num_seqs))  # a heap: the smallest is used first
        self.sampler_rows = SamplerRows(config.sampler_rows)
        self.adapter_slots = AdapterSlots(config.max_loras)
        self.encoder_cache = EncoderCache(config.encoder_tokens)
        self.num_preemptions = 0
        self._released: list[int] = []

    def arrive(self, request: Request) -> None:
        """Queue a new request."""
        self.waiting.push(request)
        self.open[request.request_id] = request
        self.recorder.queued(request)
        self.side_results.expect(request)

    def have_row_for(self, request: Request) -> bool:
        """Whether a row is free, and a row of the sampler's pool if the request needs one."""
        return bool(self.free_rows) and self.sampler_rows.have_room(request)

    def start(self, request: Request, hit: int) -> None:
        """Admit the next waiting request to the lowest free row, with `hit` cached tokens."""
        first, row = self.waiting.peek(), heapq.heappop(self.free_rows)
        assert first is request and row == request.row, "requests and rows are taken in order"
        self.waiting.remove(request)
        self.sampler_rows.take(request)
        self.adapter_slots.take(request)
        self.recorder.scheduled(request)
        request.status = RUNNING
        request.num_computed = request.num_processed = hit
        request.known_at_admission = request.sent = request.num_known
        if request.num_cached_tokens < 0:
            request.num_cached_tokens = hit
        self.running.append(request)

    def preempt(self, request: Request) -> None:
        """Return a request to the head of the queue, to be recomputed. Its known and in-flight
        tokens stay."""
        self.running.remove(request)
        self.cache.free(request)
        self._release_row(request)
        request.status = PREEMPTED
        request.num_computed = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.restore(request)

    def finish(self, request: Request) -> None:
        """Free row and blocks immediately; outputs in flight are ignored.

        The caller removes it from the running list: a commit does so once for all that have ended.
        """
        if request.status is RUNNING:
            self.cache.free(request)
            self._release_row(request)
        else:
            self.waiting.remove(request)
        request.status = FINISHED
        del self.open[request.request_id]
        self.side_results.forget(request)

    def drop_finished(self) -> None:
        """Remove finished requests from the running list."""
        self.running = [one for one in self.running if one.status is RUNNING]

    def take_released(self) -> list[int]:
        """Rows freed since the last call."""
        released, self._released = self._released, []
        return released

    def _release_row(self, request: Request) -> None:
        heapq.heappush(self.free_rows, request.row)
        self._released.append(request.row)
        request.row = -1
        self.sampler_rows.give_back(request)
        self.adapter_slots.give_back(request)


# Like rows and blocks, a limit that requests wait for in line. The pool has a fixed size, since
# another one would change the shape of the step's state and recompile every program while requests
# run.


class SamplerRows:
    """Allocator of rows of the sampler's pool (penalties, biases, masks)."""

    def __init__(self, count: int) -> None:
        self._free = list(range(1, count + 1))  # 0 stands for none

    def have_room(self, request: Request) -> bool:
        """Whether the request needs no pool row, or one is free."""
        return bool(self._free) or not request.wire.sampling.has_sampler_state

    def take(self, request: Request) -> None:
        """Assign a pool row to a starting request, if it needs one."""
        if request.wire.sampling.has_sampler_state:
            request.sampler_row = heapq.heappop(self._free)

    def give_back(self, request: Request) -> None:
        """Free the request's pool row, if it has one."""
        if request.sampler_row:
            heapq.heappush(self._free, request.sampler_row)
            request.sampler_row = 0
