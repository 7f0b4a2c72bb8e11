"""A driver and the first worker, at two ends of a socket in one process."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import jax
import msgspec
import numpy as np
import pytest

from jengine.assembly import worker
from jengine.engine.core import EngineCore
from jengine.errors import ConfigError, EngineDead, JengineError, UnexpectedCompile
from jengine.executor.multihost.messages import (
    LeaderReady,
    StepRefused,
    StepResult,
    WorkersHealth,
    decode,
)
from jengine.executor.multihost.settings import MultihostSettings
from jengine.executor.protocol import Capacity, PendingOutput, WorkerHealth
from jengine.executor.read_step import ReadStep
from jengine.executor.remote.driver import RemoteExecutor
from jengine.executor.remote.job import Ended, Job, ended_with, error_in
from jengine.executor.remote.plan_server import PlanServer
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.outputs import StepLogprobs, StepOutput
from jengine.plan import Plan
from jengine.scheduler.scheduler import Scheduler
from jengine.wire.connection import Connection
from jengine.wire.doors import Door
from jengine.wire.message import encode
from tests.executor.plugin import VOCAB, ScriptedWorkers
from tests.executor.scripted import ScriptedExecutor, scripted_tokens
from tests.scheduler.scheduler_loop import make_wire

# FakeWorkers end a thread where real ones end the process.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
SETTINGS = MultihostSettings(silence=60.0, stuck=60.0)
CAPACITY: Capacity = ScriptedWorkers.start(
    type("Job", (), {"options": {}})()  # type: ignore[arg-type]
).capacity


def test_workers_of_one_mesh_listen_at_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda *a, **more: asked.append((a, more)))
    monkeypatch.setattr(jax.distributed, "shutdown", lambda: None)
    monkeypatch.setattr(worker, "work", lambda job: None)
    job = Job({}, 0, 2, "10.0.0.7:7000", Door("tcp://10.0.0.7:7001", b"secret"), {})
    ended = msgspec.msgpack.decode(worker.run(msgspec.msgpack.encode(job)), type=Ended)
    assert ended == Ended()
    assert asked == [(("10.0.0.7:7000", 2, 0), {"coordinator_bind_address": "10.0.0.7:7000"})], (
        "jax would listen on all interfaces otherwise"
    )


@dataclass
class FakeWorkers:
    """Scripted steps that may be held up, fail or not compile."""

    tell: Callable[[str], None]
    executor: ScriptedExecutor = field(
        default_factory=lambda: ScriptedExecutor(CAPACITY.cache, VOCAB)
    )
    submitted: list[int] = field(default_factory=list)
    go_on: threading.Event = field(default_factory=threading.Event)
    refused: tuple[int, ...] = ()
    fail_step: int = -1
    ended: list[str] = field(default_factory=list)
    left: bool = False

    def submit(self, plan: Plan) -> PendingOutput:
        self.submitted.append(plan.step)
        pending = self.executor.submit(plan)
        if plan.step in self.refused:  # after the rows were noted, as the runner does
            raise UnexpectedCompile(f"the program of step {plan.step} was not there")
        return ReadStep(pending, self.read)

    def read(self, pending: PendingOutput) -> StepOutput:
        self.go_on.wait(60)
        if len(self.submitted) == self.fail_step:
            raise ValueError("this step broke")
        return pending.result()

    def update_weights(self, values: Any) -> None:
        raise AssertionError("a driver gives no parameters")

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        return [method.encode(), arguments]

    def health(self) -> list[WorkerHealth]:
        return [WorkerHealth(0, "here", self.submitted[-1] if self.submitted else -1, 0.0)]

    def shutdown(self) -> None:
        self.left = True

    def end(self, reason: str) -> NoReturn:
        self.ended.append(reason)
        self.tell(reason)
        raise SystemExit(reason)


@dataclass
class Pair:
    """Both ends."""

    driver: RemoteExecutor
    workers: FakeWorkers
    serving: threading.Thread
    connection: Connection  # of the workers
    stops: list[float]

    def core(self) -> EngineCore:
        scheduler = Scheduler(
            CAPACITY.schedule, CacheCoordinator(CAPACITY.cache), depth=CAPACITY.depth
        )
        return EngineCore(scheduler, self.driver, CAPACITY.depth)


def sockets() -> tuple[Connection, Connection]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    return Connection(ours, SETTINGS.silence), Connection(theirs, SETTINGS.silence)


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = sockets()
    server = PlanServer(theirs, SETTINGS)
    workers = FakeWorkers(server.tell_end)
    workers.go_on.set()
    serving = threading.Thread(
        target=server.serve, args=(workers, workers.end, CAPACITY), daemon=True
    )
    serving.start()
    stops: list[float] = []
    driver = RemoteExecutor(
        ours, SETTINGS, ["host process 7"], lambda: stops.append(time.monotonic())
    )
    yield Pair(driver, workers, serving, theirs, stops)
    driver.shutdown()
    # Workers that end take the process with them; here the thread that serves stays behind.
    eventually(lambda: workers.ended or not serving.is_alive())


def eventually(ready: Callable[[], Any]) -> None:
    ends = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < ends
        time.sleep(0.01)


def finish(core: EngineCore) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    while core.has_work:
        for delta in core.step():
            tokens.setdefault(delta.request_id, []).extend(delta.token_ids)
    return tokens


def test_plans_run_elsewhere(pair: Pair) -> None:
    assert pair.driver.capacity == CAPACITY
    core = pair.core()
    wires = [make_wire(length, str(length), max_tokens=9) for length in (3, 17, 30)]
    for wire in wires:
        core.add(wire)
    expected = {w.request_id: scripted_tokens(w.prompt_token_ids, 9, VOCAB) for w in wires}
    assert finish(core) == expected
    assert pair.driver.call_workers("memory", b"x") == [b"memory", b"x"]
    core.probe()
    (health,) = core.health()
    assert (health.step, health.where) == (pair.workers.submitted[-1], "host process 7")
    core.shutdown()
    pair.serving.join(60)
    assert pair.workers.left
    assert pair.workers.ended == []
    eventually(lambda: len(pair.stops) == 1)


def test_the_next_step_is_queued_while_one_runs_and_health_answers_meanwhile(pair: Pair) -> None:
    pair.workers.go_on.clear()
    core = pair.core()
    core.add(make_wire(3, max_tokens=9))
    assert core.step() == []  # the first step is queued
    second = core.scheduler.schedule()
    assert second is not None
    pending = pair.driver.submit(second)
    eventually(lambda: pair.workers.submitted == [0, 1])  # neither has ended
    assert pair.driver.health()[0].step == 1
    pair.workers.go_on.set()
    assert pending.result().tokens.shape == (1, 1)


@pytest.mark.parametrize("refused", [(0,), (0, 1)])
def test_a_program_that_is_missing_is_no_catastrophe(pair: Pair, refused: tuple[int, ...]) -> None:
    pair.workers.refused = refused
    core = pair.core()
    core.add(make_wire(3, "first"))
    with pytest.raises(UnexpectedCompile, match="the program of step 0 was not there"):
        finish(core)
    finish(core)  # what is told of the requests that have ended
    wire = make_wire(5, "second")
    core.add(wire)
    assert finish(core)["second"] == scripted_tokens(wire.prompt_token_ids, 4, VOCAB)


def test_who_waits_is_told_when_the_worker_is_lost(pair: Pair) -> None:
    pair.workers.go_on.clear()
    core = pair.core()
    core.add(make_wire(3))
    threading.Timer(0.3, pair.connection._socket.shutdown, [socket.SHUT_RDWR]).start()
    lost = "process 0 was lost (the connection was closed). Workers were process 0: host process 7"
    with pytest.raises(EngineDead, match=re.escape(lost)):
        finish(core)
    eventually(lambda: len(pair.stops) == 1)
    with pytest.raises(EngineDead, match="process 0 was lost"):
        pair.driver.health()
    pair.workers.go_on.set()


def test_an_answer_that_nobody_asked_for_ends_what_waits(pair: Pair) -> None:
    pair.workers.go_on.clear()
    core = pair.core()
    core.add(make_wire(3))
    threading.Timer(0.1, pair.connection.send, [encode(WorkersHealth([]))]).start()
    with pytest.raises(EngineDead, match="a worker does not send WorkersHealth to its driver"):
        finish(core)
    pair.workers.go_on.set()


def test_the_reason_of_a_worker_arrives(pair: Pair) -> None:
    pair.workers.fail_step = 1
    core = pair.core()
    core.add(make_wire(3, max_tokens=1))
    with pytest.raises(EngineDead, match="process 0 failed: ValueError: this step broke"):
        finish(core)
    assert pair.workers.ended[0] == "process 0 failed: ValueError: this step broke"
    eventually(lambda: len(pair.stops) == 1)


def test_a_step_that_takes_too_long(pair: Pair) -> None:
    pair.workers.go_on.clear()
    pair.driver.settings = MultihostSettings(stuck=0.2)
    core = pair.core()
    core.add(make_wire(3))
    with pytest.raises(EngineDead, match=r"have not answered a step for 0\.2 s"):
        finish(core)
    eventually(lambda: len(pair.stops) == 1)
    pair.workers.go_on.set()


def test_a_driver_that_is_lost_ends_the_workers(pair: Pair) -> None:
    pair.driver._peer._connection.close_sending()
    eventually(lambda: pair.workers.ended)
    assert "the driver was lost" in pair.workers.ended[0]


def test_shutting_down_twice_and_using_it_afterwards(pair: Pair) -> None:
    pair.driver.shutdown()
    pair.driver.shutdown()
    with pytest.raises(EngineDead, match="was shut down"):
        pair.driver.health()


def test_messages_survive_the_journey() -> None:
    health = WorkersHealth([WorkerHealth(1, "there", 5, 0.25)])
    for message in (LeaderReady(CAPACITY), health, StepRefused("why")):
        assert decode(encode(message)) == message


def test_outputs_of_steps_survive_the_journey() -> None:
    scores = StepLogprobs(
        np.array([[-0.5, -0.25]], "f4"), np.array([[3, 4]], "i4"), np.array([1], "i4")
    )
    values = {3: {"layer": np.ones((2, 3), np.float32)}}
    sent = StepOutput(np.array([[4, -1], [5, 6]], "i4"), scores, scores, values)
    message = decode(encode(StepResult(sent)))
    assert isinstance(message, StepResult)
    found = message.output
    assert isinstance(found, StepOutput)
    np.testing.assert_array_equal(found.tokens, sent.tokens)
    for theirs in (found.logprobs, found.prompt_logprobs):
        assert isinstance(theirs, StepLogprobs)
        for one, other in zip(theirs, scores, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)
    assert list(found.captured) == [3]
    np.testing.assert_array_equal(found.captured[3]["layer"], values[3]["layer"])
    plain = decode(encode(StepResult(StepOutput(sent.tokens))))
    assert isinstance(plain, StepResult)
    assert (plain.output.logprobs, plain.output.captured) == (None, {})


@pytest.mark.parametrize("error", [ConfigError("no room"), EngineDead("lost")])
def test_errors_keep_their_class(error: JengineError) -> None:
    found = error_in(ended_with(error))
    assert type(found) is type(error)
    assert str(found) == str(error)


def test_only_our_errors_are_made_of_what_a_worker_says() -> None:
    import msgspec

    def said(kind: Any) -> JengineError | None:
        return error_in(msgspec.msgpack.encode(Ended(kind, "text")))

    assert said(None) is None
    for kind in ("SystemExit", "difflib", "nearest_name"):
        assert type(said(kind)) is JengineError
