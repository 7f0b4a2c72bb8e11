"""The engine's scheduling loop: schedule, submit, commit.

Asynchronous scheduling: the next step is queued before the tokens of the last one are read. Must
not know text, devices, or readers of outputs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from jengine.counts import Counts, ProgramTotals
from jengine.device_advice import Doing, advice
from jengine.errors import EngineDead, StepDropped, UnexpectedCompile
from jengine.executor.calls import decoded_answers, encoded_arguments
from jengine.executor.protocol import Executor, PendingOutput, WorkerHealth
from jengine.outputs import TokenDelta
from jengine.plan import Plan
from jengine.request import ReadPrompt, WireRequest
from jengine.scheduler.refusal import refuse_impossible
from jengine.scheduler.scheduler import Scheduler


class EngineCore:
    """Requests in, token deltas out; `depth` plans may be in flight while one is read.

    `programs` returns counts of compiled programs, if known. All methods except `read`,
    `check_alive` and `health` run between two steps, in one thread at a time, which `engine.client`
    ensures: outside callers, such as a finalizer run inside `schedule`, only append to the client's
    queue.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        depth: int,
        programs: Callable[[], ProgramTotals] = ProgramTotals,
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.depth = depth
        self.programs = programs
        self.in_flight: deque[tuple[Plan, PendingOutput]] = deque()
        self.is_due = False  # the oldest step in flight must be read before the next is queued
        self.undelivered: list[TokenDelta] = []  # deltas that no step has returned yet
        self.failure: BaseException | None = None

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_unfinished or bool(self.undelivered)

    @property
    def patience(self) -> float:
        return 0.0 if self.in_flight or self.undelivered else self.scheduler.patience

    def when_woken(self, tell: Callable[[], object]) -> None:
        self.scheduler.when_woken(tell)

    @property
    def is_compiling(self) -> bool:
        return self.programs().awaited > 0

    def read(self, wire: WireRequest) -> ReadPrompt:
        refuse_impossible(wire, self.scheduler.config, self.scheduler.cache)
        return self.scheduler.cache.read(wire)

    def add(self, wire: WireRequest, prompt: ReadPrompt | None = None) -> None:
        self.check_alive()
        self.scheduler.add(wire, prompt)

    def abort(self, request_id: str) -> TokenDelta | None:
        return self.scheduler.abort(request_id)

    def step(self, read: bool = True) -> list[TokenDelta]:
        """Queue the next step, then read the previous one unless `read` is False."""
        self.check_alive()
        with self._failing():
            plan = self.scheduler.schedule()
            self.undelivered += self.scheduler.take_failed()
            if plan:
                self.in_flight.append((plan, self.executor.submit(plan)))
            self.is_due = bool(self.in_flight) and (not plan or len(self.in_flight) > self.depth)
            if self.is_due and read:
                done, pending = self.in_flight.popleft()
                self.undelivered += self.scheduler.commit(done, pending.result())
        deltas, self.undelivered = self.undelivered, []
        return deltas

    def run_ahead(self) -> list[TokenDelta]:
        """Queue a step if none is in flight, so that the device works while tokens are detokenized.
        No-op without overlap (depth 0), where a step needs the results of the one before."""
        return [] if self.in_flight or not self.depth else self.step(read=False)

    def drain(self) -> list[TokenDelta]:
        self.check_alive()
        with self._failing():
            while self.in_flight:
                done, pending = self.in_flight.popleft()
                self.undelivered += self.scheduler.commit(done, pending.result())
        deltas, self.undelivered = self.undelivered, []
        return deltas

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """An exception of a step stops the engine (EngineDead); UnexpectedCompile and interrupts
        only abort all requests."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, UnexpectedCompile):
                self.failure = error
                what = f"a step failed: {type(error).__name__}: {error}"
                raise EngineDead(f"{what} {advice(error, Doing.STEP)}".rstrip()) from error
            # The plan never ran, so its tokens are not in the KV cache. The next step returns the
            # last deltas of all requests. (A first Ctrl-C waits for the end of the step; a second
            # one, or an exception of another signal handler, arrives here.)
            self.undelivered += self.reset()
            raise

    @property
    def weights_version(self) -> int:
        return self.scheduler.cache.weights_version

    def update_weights(self, values: Any) -> int:
        """Swap parameters before the next step. Returns the new weights version.

        The version is in the root of every prefix hash, so earlier cached blocks are never found
        again.
        """
        self.check_alive()
        self.executor.update_weights(values)
        version = self.weights_version + 1
        self.scheduler.set_weights_version(version)
        return version

    def resize_cache(self, num_bytes: int) -> list[TokenDelta]:
        """Resize the KV cache to `num_bytes`. Cached prefixes are kept as far as they fit; running
        requests are preempted.

        If it raises, only the preemption has happened.
        """
        self.undelivered = self.drain()
        self.scheduler.preempt_all()
        arguments = encoded_arguments("resize_cache", {"num_bytes": num_bytes})
        answers = self.call_workers("resize_cache", arguments)
        (blocks, *_) = decoded_answers("resize_cache", answers)
        self.scheduler.cache.resize(blocks)
        deltas, self.undelivered = self.undelivered, []
        return deltas

    def reset(self) -> list[TokenDelta]:
        """Abort all requests, and drop steps in flight and the prefix cache."""
        for _, pending in self.in_flight:
            with suppress(StepDropped):
                pending.result()  # its blocks may be reused only once it has run
        self.in_flight.clear()
        deltas = self.scheduler.reset()
        self.scheduler.reset_prefix_cache()
        return deltas

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        return self.scheduler.reset_prefix_cache(reset_running_requests=reset_running_requests)

    def counts(self) -> Counts:
        return self.scheduler.counts(self.programs())

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        self.check_alive()
        return self.executor.call_workers(method, arguments)

    def health(self) -> list[WorkerHealth]:
        self.check_alive()
        return self.executor.health()

    def probe(self) -> None:
        self.check_alive()
        with self._failing():
            self.executor.submit(self.scheduler.empty_plan()).result()

    def check_alive(self) -> None:
        """Raise EngineDead if a step has failed or the engine was shut down."""
        if self.failure is not None:
            raise EngineDead("this engine has stopped; create a new one.") from self.failure

    def shutdown(self) -> None:
        self.in_flight.clear()
        self.undelivered.clear()
        self.scheduler.reset()
        self.scheduler.cache.listeners.close()
        self.executor.shutdown()
        self.failure = self.failure or EngineDead("this engine was shut down.")
