"""The leading process's core: an EngineCore whose steps, aborts and weights every process follows.

In: requests, the same in every process. Out: token deltas, for its own session and the followers.
Must not know sockets or devices.
"""

from __future__ import annotations

from typing import Any

from jengine.distributed.request_digest import ParameterNotes, digests_of
from jengine.engine.core import EngineCore
from jengine.errors import ConfigError, RequestError, UnexpectedCompile, UnsupportedFeature
from jengine.executor.multihost.channel import LeaderChannel, failing_together, reports
from jengine.executor.multihost.executors import LeadingExecutor
from jengine.executor.multihost.messages import RequestAborted, StepDone, StepRead
from jengine.outputs import TokenDelta
from jengine.request import ReadPrompt, WireRequest

LISTENING = 1e-3  # seconds between two looks at what the others send


class LeadingCore:
    """Schedules for all processes."""

    def __init__(
        self, core: EngineCore, executor: LeadingExecutor, channel: LeaderChannel,
        notes: ParameterNotes,
    ) -> None:  # fmt: skip
        self.core = core
        self.executor = executor
        self.channel = channel
        self.notes = notes
        # Only this process knows requests and prefixes.
        self.check, self.read, self.when_woken = core.check, core.read, core.when_woken
        self.reset_prefix_cache, self.counts = core.reset_prefix_cache, core.counts
        self.health, self.check_alive = core.health, core.check_alive
        self.unchecked: dict[str, WireRequest] = {}  # not yet known to be the same everywhere

    @property
    def has_work(self) -> bool:
        """Whether some request still waits for its final answer."""
        return self.core.has_work

    @property
    def weights_version(self) -> int:
        """How often the parameters were replaced."""
        return self.core.weights_version

    @property
    def patience(self) -> float:
        """As the core's, but short: no bell rings for what the others send."""
        return min(self.core.patience, LISTENING)

    @property
    def is_compiling(self) -> bool:
        """Whether a step waits for a program that is being compiled here."""
        return self.core.is_compiling

    def add(self, wire: WireRequest, prompt: ReadPrompt | None = None) -> None:
        """Queue a request. It is compared with those of the others before it runs."""
        self.core.add(wire, prompt)
        self.unchecked[wire.request_id] = wire

    def abort(self, request_id: str) -> TokenDelta | None:
        """End a request in every process. Returns its last delta, or None if it has ended."""
        delta = self.core.abort(request_id)
        if self.unchecked.pop(request_id, None) is None and delta is not None:
            self.channel.broadcast(RequestAborted(request_id, delta))
        return delta

    def step(self) -> list[TokenDelta]:
        """One step of all processes."""
        self.core.check_alive()
        self._hear()
        if self.unchecked or self.channel.has_report:
            self._agree_on_requests()
        with self.channel.inside_step():
            deltas = self._step()
        self.executor.compare_samples()
        self.channel.broadcast(StepDone(self.executor.read, deltas, self.counts()))
        return deltas

    def resize_cache(self, num_bytes: int) -> list[TokenDelta]:
        """Refused."""
        raise UnsupportedFeature(
            "resize_cache: an engine over several processes keeps the size of its cache. Create it "
            "with another kv_cache_memory_bytes."
        )

    def drain(self) -> list[TokenDelta]:
        """Read every step in flight, and tell the others to."""
        with self.channel.inside_step(), failing_together(self.channel):
            deltas = self.core.drain()
        self.executor.compare_samples()
        self.channel.broadcast(StepDone(self.executor.read, deltas, self.counts()))
        self.channel.agree(reports("a pause", []), self._serve)
        return deltas

    def run_ahead(self) -> list[TokenDelta]:
        """Nothing: the others are told of a step's deltas before the next one is queued."""
        return []

    def _step(self) -> list[TokenDelta]:
        try:
            with failing_together(self.channel):
                return self.core.step()
        except UnexpectedCompile:  # the others meet the same, and nothing of it has run
            self.channel.broadcast(StepRead(self.executor.read))
            raise

    def _agree_on_requests(self) -> None:
        wires, self.unchecked = list(self.unchecked.values()), {}
        names = [wire.request_id for wire in wires]
        verdict = self.channel.agree(reports("requests", digests_of(wires)), self._serve, names)
        if verdict.problem is not None:
            ended = map(self.core.abort, names)
            self.core.undelivered += [delta for delta in ended if delta is not None]
            raise RequestError(verdict.problem)

    def _hear(self) -> None:
        """Take in what the others have said meanwhile."""
        while self.channel.read():
            pass
        self._serve()

    def _serve(self) -> None:
        """End requests that a follower does not want any longer, here and everywhere."""
        while self.channel.ends:
            rank, request_id = self.channel.ends.popleft()
            delta = self.abort(request_id)
            if delta is None:
                self.channel.tell(rank, RequestAborted(request_id, None))
            else:
                self.core.undelivered.append(delta)

    def update_weights(self, values: Any) -> int:
        """Use other parameters in every process."""
        self.core.check_alive()
        verdict = self.channel.agree(reports("weights", self.notes.take()), self._serve)
        if verdict.problem is not None:
            raise ConfigError(f"{verdict.problem} Nothing was changed.")
        return self.core.update_weights(values)

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        """The result of a call in every process; every process makes it."""
        self.core.check_alive()
        return self.executor.call_workers(method, arguments, self._serve)

    def probe(self) -> None:
        """An empty step in every process; all of them ask for it."""
        with self.channel.inside_step(), failing_together(self.channel):
            self.core.probe()
        self.channel.broadcast(StepDone(self.executor.read, [], self.counts()))

    def shutdown(self) -> None:
        """Abort everything, and tell the others."""
        self.unchecked.clear()
        self.core.shutdown()
