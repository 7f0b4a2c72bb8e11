"""The EngineCore of a follower process: same interface, but the leader schedules.

In: the same requests as in every process, and the leader's messages. Out: token deltas. Whenever it
waits, it runs the plans that arrive, so that no collective waits for this process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from jengine.distributed.leader import refuse_resize
from jengine.distributed.request_digest import digests_of
from jengine.errors import ConfigError, EngineDead, RequestError, UnexpectedCompile
from jengine.executor.multihost.channel import FollowerChannel, reports
from jengine.executor.multihost.executors import FollowingExecutor
from jengine.executor.multihost.messages import (
    CallProcesses,
    FollowerAbort,
    Report,
    ReportDue,
    RequestAborted,
    RunPlan,
    StepDone,
    StepRead,
    Verdict,
)
from jengine.executor.multihost.parameter_digests import ParameterDigests
from jengine.executor.protocol import WorkerHealth
from jengine.outputs import Counts, TokenDelta
from jengine.plan import Plan
from jengine.request import ReadPrompt, WireRequest
from jengine.wire.message import Message


class FollowingCore:
    """Runs the leader's plans and delivers the same deltas as the leader."""

    def __init__(
        self,
        executor: FollowingExecutor,
        channel: FollowerChannel,
        notes: ParameterDigests,
        check: Callable[[WireRequest], None],
    ) -> None:
        self.executor = executor
        self.channel = channel
        self.notes = notes
        self.failure: BaseException | None = None
        self._check = check  # raises a RequestError where the leader's scheduler would
        self._version = 0
        self._counts = Counts()
        # Unfinished requests: the leader's request id -> this process's, and back.
        self._open: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._unchecked: dict[str, WireRequest] = {}  # not yet compared across processes
        # Deltas and errors of the leader's steps that `step` has not returned yet, in order.
        self._outcomes: deque[list[TokenDelta] | Exception] = deque()
        self._ended: dict[str, TokenDelta | None] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._open or self._unchecked)

    @property
    def weights_version(self) -> int:
        return self._version

    @property
    def patience(self) -> float:
        """0: `step` itself blocks on the leader."""
        return 0.0

    def when_woken(self, tell: Callable[[], object]) -> None:
        """No-op: waiting requests are the leader's."""

    @property
    def is_compiling(self) -> bool:
        """Not known here: compilation happens inside the leader's step."""
        return False

    def read(self, wire: WireRequest) -> None:
        """Check the request. The leader looks up cached prefixes."""
        self._check(wire)

    def add(self, wire: WireRequest, prompt: ReadPrompt | None = None) -> None:
        """Register a request, which the leader must be given too."""
        self.check_alive()
        self._check(wire)
        self._unchecked[wire.request_id] = wire

    def abort(self, request_id: str) -> TokenDelta | None:
        """Ask the leader to abort a request, and run its plans until it has."""
        self._unchecked.pop(request_id, None)
        name = self._names.get(request_id)
        if name is None:
            return None
        if self.failure is None and name not in self._ended:
            self.channel.send(FollowerAbort(name))
            while name not in self._ended:
                self._take(self._next())
        delta = self._ended.get(name)
        self._close(name)
        return None if delta is None else msgspec.structs.replace(delta, request_id=request_id)

    def step(self) -> list[TokenDelta]:
        """Return the deltas of the leader's next step."""
        self.check_alive()
        if self._unchecked:
            self._agree_on_requests()
        while not self._outcomes:
            self._take(self._next())
        outcome = self._outcomes.popleft()
        if isinstance(outcome, Exception):
            raise outcome
        return [self._own(delta) for delta in outcome if delta.request_id in self._open]

    def resize_cache(self, num_bytes: int) -> list[TokenDelta]:
        refuse_resize()

    def drain(self) -> list[TokenDelta]:
        """Run and read every plan that the leader has sent; `step` returns the deltas."""
        self.check_alive()
        self._agree("a pause", [])
        return []

    def run_ahead(self) -> list[TokenDelta]:
        """No-op: the leader schedules."""
        return []

    def _own(self, delta: TokenDelta) -> TokenDelta:
        """The delta under this process's request id; the leader's ids differ."""
        name = delta.request_id
        own = msgspec.structs.replace(delta, request_id=self._open[name])
        if delta.finish_reason is not None:
            self._close(name)
        return own

    def _close(self, name: str) -> None:
        del self._names[self._open.pop(name)]
        self._ended.pop(name, None)

    def update_weights(self, values: Any) -> int:
        self.check_alive()
        problem = self._agree("weights", self.notes.take()).problem
        if problem is not None:
            raise ConfigError(f"{problem} Nothing was changed.")
        self.executor.update_weights(values)
        self._version += 1
        return self._version

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Returns False while requests run. The prefix cache itself is the leader's."""
        return reset_running_requests or not self.has_work

    def counts(self) -> Counts:
        """The leader's scheduler counters after its last step."""
        return self._counts

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        """Take part in a worker call, which every process must make. Returns all answers."""
        self.check_alive()
        verdict = self._report(self.executor.report(method, arguments))
        if verdict.problem is not None:
            raise RequestError(verdict.problem)
        return verdict.answers

    def health(self) -> list[WorkerHealth]:
        self.check_alive()
        return self.executor.health()

    def probe(self) -> None:
        """Take part in an empty step, which every process must run."""
        self.step()

    def check_alive(self) -> None:
        if self.failure is not None:
            raise EngineDead("this engine has stopped; create a new one.") from self.failure

    def shutdown(self) -> None:
        """Drop all requests and leave."""
        self._open.clear()
        self._names.clear()
        self._unchecked.clear()
        self._outcomes.clear()
        self.executor.shutdown()
        self.failure = self.failure or EngineDead("this engine was shut down.")

    def _agree_on_requests(self) -> None:
        wires, self._unchecked = self._unchecked, {}
        verdict = self._agree("requests", digests_of(wires.values()))
        if verdict.problem is not None:
            raise RequestError(verdict.problem)
        self._open.update(zip(verdict.names, wires, strict=True))
        self._names.update(zip(wires, verdict.names, strict=True))

    def _agree(self, subject: str, items: list[tuple[str, bytes]]) -> Verdict:
        return self._report(reports(subject, items))

    def _report(self, report: Report) -> Verdict:
        try:
            return self.channel.agree(report, self._take)
        except EngineDead as error:
            self.failure = error
            raise

    def _next(self) -> Message:
        try:
            return self.channel.next()
        except EngineDead as error:
            self.failure = error
            raise

    def _take(self, message: Message) -> None:
        """Handle one message of the leader."""
        match message:
            case RunPlan(plan):
                self._run(plan)
            case StepRead(read):
                self.executor.read_up_to(read)
            case StepDone(deltas, counts):
                self._counts = counts
                self._outcomes.append(deltas)
            case RequestAborted(request_id, delta):
                self._note_end(request_id, delta)
            case CallProcesses(method, arguments):  # a driver calls all processes via the leader
                self._report(self.executor.report(method, arguments))
            case ReportDue():
                if not self.channel.answers(message):
                    # The leader has started an agreement that this process has not reached yet.
                    verdict = self._agree("requests", [])
                    self._outcomes.append(RequestError(verdict.problem))
            case _:
                self.channel.failed(f"a leader does not send {type(message).__name__}")

    def _run(self, plan: Plan) -> None:
        try:
            self.executor.submit(plan)
        except UnexpectedCompile as error:  # raised in the leader too
            self._outcomes.append(error)

    def _note_end(self, request_id: str, delta: TokenDelta | None) -> None:
        if request_id in self._open:
            self._ended[request_id] = delta
            if delta is not None:
                self._outcomes.append([delta])
