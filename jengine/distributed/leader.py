"""The EngineCore of the leader process, which schedules for all processes.

In: requests, the same in every process. Out: token deltas, for its own session and the followers.
Must not know sockets or devices.
"""

from __future__ import annotations

from typing import Any, NoReturn

from jengine.distributed.request_digest import digests_of
from jengine.engine.core import EngineCore
from jengine.errors import ConfigError, RequestError, UnsupportedFeature
from jengine.executor.multihost.channel import LeaderChannel, reports
from jengine.executor.multihost.executors import LeadingExecutor
from jengine.executor.multihost.messages import RequestAborted, StepDone
from jengine.executor.multihost.parameter_digests import ParameterDigests
from jengine.outputs import TokenDelta
from jengine.request import ReadPrompt, WireRequest

LISTENING = 1e-3  # poll interval of followers' messages, in seconds


class LeadingCore:
    """Wraps an EngineCore and schedules for all processes."""

    def __init__(
        self, core: EngineCore, executor: LeadingExecutor, channel: LeaderChannel,
        notes: ParameterDigests,
    ) -> None:  # fmt: skip
        self.core = core
        self.executor = executor
        self.channel = channel
        self.notes = notes
        # Only the leader holds the queue and the prefix cache.
        self.read, self.when_woken = core.read, core.when_woken
        self.reset_prefix_cache, self.counts = core.reset_prefix_cache, core.counts
        self.health, self.check_alive = core.health, core.check_alive
        self.unchecked: dict[str, WireRequest] = {}  # not yet compared across processes

    @property
    def has_work(self) -> bool:
        return self.core.has_work

    @property
    def weights_version(self) -> int:
        return self.core.weights_version

    @property
    def patience(self) -> float:
        """At most `LISTENING`, since messages of followers are polled."""
        return min(self.core.patience, LISTENING)

    @property
    def is_compiling(self) -> bool:
        return self.core.is_compiling

    def add(self, wire: WireRequest, prompt: ReadPrompt | None = None) -> None:
        """Queue a request. Before it runs, its digest is compared across processes."""
        self.core.add(wire, prompt)
        self.unchecked[wire.request_id] = wire

    def abort(self, request_id: str) -> TokenDelta | None:
        """Abort a request in every process. Returns its last delta, or None if it has already
        finished."""
        delta = self.core.abort(request_id)
        if self.unchecked.pop(request_id, None) is None and delta is not None:
            self.channel.broadcast(RequestAborted(request_id, delta))
        return delta

    def step(self) -> list[TokenDelta]:
        """Run one step in all processes."""
        self.core.check_alive()
        self._hear()
        if self.unchecked or self.channel.has_report:
            self._agree_on_requests()
        with self.channel.inside_step():
            deltas = self.core.step()
        return self._told(deltas)

    def resize_cache(self, num_bytes: int) -> list[TokenDelta]:
        refuse_resize()

    def drain(self) -> list[TokenDelta]:
        with self.channel.inside_step():
            deltas = self.core.drain()
        self._told(deltas)
        self.channel.agree(reports("a pause", []), self._serve)
        return deltas

    def run_ahead(self) -> list[TokenDelta]:
        """No-op: followers get a step's deltas before the next step is queued."""
        return []

    def _told(self, deltas: list[TokenDelta]) -> list[TokenDelta]:
        """Broadcast a step's deltas to the followers and return them. Called after the step has
        ended here: a process may leave once it has its last delta."""
        self.channel.broadcast(StepDone(deltas, self.counts()))
        return deltas

    def _agree_on_requests(self) -> None:
        wires, self.unchecked = list(self.unchecked.values()), {}
        names = [wire.request_id for wire in wires]
        verdict = self.channel.agree(reports("requests", digests_of(wires)), self._serve, names)
        if verdict.problem is not None:
            ended = map(self.core.abort, names)
            self.core.undelivered += [delta for delta in ended if delta is not None]
            raise RequestError(verdict.problem)

    def _hear(self) -> None:
        """Process the messages that followers have sent."""
        self.channel.read_all()
        self._serve()

    def _serve(self) -> None:
        """Abort the requests that clients of followers have cancelled."""
        while self.channel.ends:
            rank, request_id = self.channel.ends.popleft()
            delta = self.abort(request_id)
            if delta is None:
                self.channel.tell(rank, RequestAborted(request_id, None))
            else:
                self.core.undelivered.append(delta)

    def update_weights(self, values: Any) -> int:
        """Replace the parameters in every process, after comparing their digests."""
        self.core.check_alive()
        verdict = self.channel.agree(reports("weights", self.notes.take()), self._serve)
        if verdict.problem is not None:
            raise ConfigError(f"{verdict.problem} Nothing was changed.")
        return self.core.update_weights(values)

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        """Make a worker call in every process, all of which must make it. Returns all answers."""
        self.core.check_alive()
        return self.executor.join_call(method, arguments, self._serve)

    def probe(self) -> None:
        """Run an empty step, which every process must ask for."""
        with self.channel.inside_step():
            self.core.probe()
        self._told([])

    def shutdown(self) -> None:
        """Abort all requests and tell the followers."""
        self.unchecked.clear()
        self.core.shutdown()


def refuse_resize() -> NoReturn:
    """Raise UnsupportedFeature, in every process alike."""
    raise UnsupportedFeature(
        "resize_cache: an engine over several processes keeps the size of its cache. Create it "
        "with another kv_cache_memory_bytes."
    )
