"""Data parallelism inside one core: routes each request to a replica and steps all replicas
together.

In: requests. Out: the token deltas of all replicas. Every replica is an EngineCore with a
scheduler, a cache and devices of its own. Must not know devices.

Without threads: a step is queued in every replica before any is waited for, and replicas that have
finished are read, so a long prefill in one does not delay the others. A parameter is one array over
the whole mesh, loaded once and replaced in all replicas or in none. With `joint_replicas` each step
is one program over all devices, over which experts are then spread (`runner/joint_runner.py`); a
replica without work runs an empty step. Schedulers, states and inputs stay per replica: the
program's arrays have them as shards, so nothing is copied (`runner/step/joined.py`). Each replica's
program is compiled for its devices from the same HLO, so on GPUs the persistent cache serves all
but the first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jengine.counts import Counts, together
from jengine.distributed.router import Placed, Router
from jengine.engine.core import EngineCore
from jengine.errors import EngineDead, RequestError
from jengine.executor.calls import CALLS
from jengine.executor.protocol import WorkerHealth
from jengine.outputs import TokenDelta
from jengine.request import ReadPrompt, Request, WireRequest

# Poll interval of running steps. Each replica has its next step queued meanwhile.
GLANCE = 1e-4


class DataParallelCore:
    """Data-parallel EngineCores as one core. Replicas compute concurrently, or in turn at depth
    0."""

    def __init__(
        self,
        replicas: Sequence[EngineCore],
        names: Sequence[str],
        split: Callable[[Any], Sequence[Any]],
        in_turn: bool,
        launch: Callable[[], None] = lambda: None,
    ) -> None:
        self.replicas = replicas
        self.names = names  # for errors
        self.split = split  # parameters -> the part of each replica
        self.in_turn = in_turn
        # Queues the joint program of replicas that step together.
        self.launch = launch
        block_size = replicas[0].scheduler.cache.block_size
        self.router = Router(len(replicas), block_size)
        self.undelivered: list[TokenDelta] = []  # deltas that no step has returned yet
        self.failure: BaseException | None = None

    @property
    def has_work(self) -> bool:
        return bool(self.undelivered) or any(replica.has_work for replica in self.replicas)

    @property
    def weights_version(self) -> int:
        return self.replicas[0].weights_version

    @property
    def patience(self) -> float:
        if self.undelivered:
            return 0.0
        return min((one.patience for one in self.replicas if one.has_work), default=0.0)

    def when_woken(self, tell: Callable[[], object]) -> None:
        for replica in self.replicas:
            replica.when_woken(tell)

    @property
    def is_compiling(self) -> bool:
        return any(replica.is_compiling for replica in self.replicas)

    def read(self, wire: WireRequest) -> ReadPrompt:
        """Check a prompt and hash it for `add`. Block hashes are the same in every replica."""
        return self.replicas[0].read(wire)

    def add(self, wire: WireRequest, prompt: ReadPrompt | None = None) -> None:
        """Queue a request in the replica that it names, else by cached prefix and load."""
        self.check_alive()
        if wire.request_id in self.router:
            raise RequestError(f"request_id={wire.request_id!r} is being answered already.")
        length, prompt = len(wire.prompt_token_ids), prompt or self.read(wire)
        request = Request(wire, length, 0, prompt)
        found = [one.scheduler.cache.find_prefix(request) for one in self.replicas]
        chosen = wire.replica
        if chosen is None:
            chosen = self.router.replica_for(found, request.block_hashes)
        self.replicas[chosen].add(wire, prompt)
        self.router.enter(wire.request_id, Placed(chosen, length, request.block_hashes))

    def abort(self, request_id: str) -> TokenDelta | None:
        replica = self.router.replica_of(request_id)
        if replica is None:
            return None
        self.router.leave(request_id)
        return self.replicas[replica].abort(request_id)

    def step(self) -> list[TokenDelta]:
        """Run one step of every replica that has work."""
        self.check_alive()
        for index in range(len(self.replicas)):
            self._step(index, read=self.in_turn)
        self._launch()
        for index in () if self.in_turn else self._readable():
            self._step(index, read=True)
        return self._delivered()

    def _delivered(self) -> list[TokenDelta]:
        deltas, self.undelivered = self.undelivered, []
        for delta in deltas:
            self.router.note(delta)
        return deltas

    def run_ahead(self) -> list[TokenDelta]:
        """No-op: `step` queues ahead in every replica."""
        return []

    def _step(self, index: int, read: bool) -> None:
        with self._naming(index):
            self.undelivered += self.replicas[index].step(read=read)

    def _launch(self) -> None:
        """Queue the joint program, if replicas step together."""
        try:
            self.launch()
        except Exception as error:
            self.failure = EngineDead(
                f"a step of all replicas failed: {type(error).__name__}: {error}"
            )
            raise self.failure from error

    def _readable(self) -> list[int]:
        """Replicas to read, after all have queued their steps: those whose oldest step has
        finished.

        Slower replicas (a long prefill) are not waited for. Blocks for the first to finish only if
        no replica can queue another step.
        """
        busy = {i: one.in_flight[0][1] for i, one in enumerate(self.replicas) if one.in_flight}
        due = {index: step for index, step in busy.items() if self.replicas[index].is_due}
        if len(due) == len(busy) == 1:
            return list(due)
        while due and len(due) == len(busy) and not any(step.ready for step in due.values()):
            time.sleep(GLANCE)
        return [index for index, step in due.items() if step.ready]

    @contextmanager
    def _naming(self, index: int) -> Iterator[None]:
        """Add the failing replica's name to an error; a failure of one replica ends the engine."""
        try:
            yield
        except EngineDead as error:
            self.failure = EngineDead(f"{self.names[index]}: {error}")
            raise self.failure from error

    def update_weights(self, values: Any) -> int:
        """Replace the parameters of all replicas, or of none, from the next step on."""
        self.check_alive()
        parts = self.split(values)
        for index, (replica, part) in enumerate(zip(self.replicas, parts, strict=True)):
            with self._naming(index):
                replica.update_weights(part)
        return self.weights_version

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Clear the prefix caches. Returns False, changing nothing, if requests use cached
        blocks."""
        in_use = any(replica.counts().cache_usage for replica in self.replicas)
        if in_use and not reset_running_requests:
            return False
        for replica in self.replicas:
            replica.reset_prefix_cache(reset_running_requests)
        return True

    def counts(self) -> Counts:
        return together([replica.counts() for replica in self.replicas])

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        """Run a worker call here: for the first replica only, or for each where the call requires
        it."""
        self.check_alive()
        asked = self.replicas if CALLS[method].each_replica else self.replicas[:1]
        return [one for replica in asked for one in replica.call_workers(method, arguments)]

    def resize_cache(self, num_bytes: int) -> list[TokenDelta]:
        """Resize every replica's KV cache to this many bytes."""
        self.check_alive()
        for index, replica in enumerate(self.replicas):
            with self._naming(index):
                self.undelivered += replica.resize_cache(num_bytes)
        return self._delivered()

    def drain(self) -> list[TokenDelta]:
        self.check_alive()
        for index, replica in enumerate(self.replicas):
            with self._naming(index):
                self.undelivered += replica.drain()
        return self._delivered()

    def health(self) -> list[WorkerHealth]:
        self.check_alive()
        return self.replicas[0].health()

    def probe(self) -> None:
        self.check_alive()
        for index, replica in enumerate(self.replicas):
            with self._naming(index):
                replica.probe()

    def check_alive(self) -> None:
        """Raise EngineDead if a replica has failed."""
        if self.failure is not None:
            raise EngineDead("this engine has stopped; create a new one.") from self.failure

    def shutdown(self) -> None:
        self.undelivered.clear()
        self.router.clear()
        for replica in self.replicas:
            replica.shutdown()
        self.failure = self.failure or EngineDead("this engine was shut down.")
