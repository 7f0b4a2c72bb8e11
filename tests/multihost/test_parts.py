"""The parts of the channel between processes, in one process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import jax
import msgspec
import numpy as np
import pytest

from jengine.assembly import worker
from jengine.distributed.follower import FollowingCore
from jengine.distributed.leader import LeadingCore
from jengine.distributed.process_group import SeveralProcesses
from jengine.engine.core import EngineCore
from jengine.errors import ConfigError, EngineDead
from jengine.executor.multihost import channel as channels
from jengine.executor.multihost import rendezvous
from jengine.executor.multihost.agreement import problem_in
from jengine.executor.multihost.channel import FollowerChannel, LeaderChannel, reports
from jengine.executor.multihost.executors import FollowingExecutor, LeadingExecutor, StepDigest
from jengine.executor.multihost.messages import (
    FetchesEnded,
    RequestAborted,
    RunPlan,
    SampleDigest,
    StepDone,
    StepRead,
    decode,
)
from jengine.executor.multihost.parameter_digests import ParameterDigests
from jengine.executor.multihost.rendezvous import address_towards
from jengine.executor.multihost.settings import Direction, MultihostSettings
from jengine.executor.remote.job import Job
from jengine.outputs import Counts, StepLogprobs, StepOutput, TokenDelta
from jengine.plan import (
    Entries,
    Entry,
    Fetch,
    NewBlocks,
    NewRow,
    Plan,
    RowSampling,
    Transfers,
    Wanted,
    packed_tokens,
)
from jengine.wire.arrays import ARRAY, ArrayFrame
from jengine.wire.connection import MOST_CALLERS, Connection, Listener, connect
from jengine.wire.doors import Door, tcp
from jengine.wire.message import BadFrame, Message, encode

DOOR = Door("tcp://127.0.0.1:*", b"s" * 32)
SETTINGS = MultihostSettings(silence=5.0, stuck=0.5)
PLAN = Plan(
    3, Entries.of([Entry(0, 5, 1), Entry(2, 0, 7, Wanted.NOTHING)]), 1,
    [NewRow(2, packed_tokens([1, 2, 3]), 3, RowSampling(seed=2**64 - 1, logit_bias={5: 0.5}))],
    [NewBlocks(2, 0, 0, [4, 9])], [1],
)  # fmt: skip

ends_a_thread = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why a process would have ended; only the thread that says so does."""
    reasons: list[str] = []

    def end(reason: str) -> None:
        reasons.append(reason)
        raise SystemExit

    monkeypatch.setattr(channels, "end_process", end)
    return reasons


@pytest.fixture
def pair(ends: list[str]) -> Iterator[tuple[LeaderChannel, FollowerChannel]]:
    ours, theirs = sockets()
    leader = LeaderChannel(0, {1: ours}, {1: "b"}, SETTINGS)
    follower = FollowerChannel(1, 0, theirs, "a", replace(SETTINGS, stuck=60.0))
    yield leader, follower
    leader.leave("the test has ended")
    follower.leave("the test has ended")


def sockets(silence: float = SETTINGS.silence) -> tuple[Connection, Connection]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    return Connection(ours, silence), Connection(theirs, silence)


def eventually(ready: Callable[[], Any], seconds: float = 60.0) -> None:
    began = time.monotonic()
    while not ready():
        assert time.monotonic() - began < seconds
        time.sleep(0.01)


def test_messages_survive_the_journey() -> None:
    scores = StepLogprobs(
        np.arange(4, dtype=np.float32).reshape(2, 2), np.ones((2, 2), np.int32), np.arange(2)
    )
    delta = TokenDelta(
        request_id="0_7",
        token_ids=[5],
        stop_reason="end",
        logprobs=scores,
        captured={"norm": np.ones((2, 3), np.float32)},
    )
    assert decode(encode(RunPlan(PLAN))) == RunPlan(PLAN)
    for message in (
        StepDone([delta], Counts(running=2, cache_usage=0.5)),
        RequestAborted("0_7", delta),
    ):
        found = decode(encode(message))
        (got,) = found.deltas if isinstance(found, StepDone) else [found.delta]
        assert isinstance(got.logprobs, StepLogprobs)
        for mine, theirs in zip(got.logprobs, scores, strict=True):
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine, theirs)
        np.testing.assert_array_equal(got.captured["norm"], delta.captured["norm"])
        assert (got.request_id, got.token_ids, got.stop_reason) == ("0_7", [5], "end")


def test_who_does_not_know_the_secret_is_not_let_in() -> None:
    with Listener(DOOR, 60.0) as listener, ThreadPoolExecutor() as threads:
        accepted = threads.submit(listener.accept, 60.0)
        here = listener.door
        with pytest.raises(ConnectionError):
            connect(Door(here.address, b"other"), 1, 60.0)
        with socket.create_connection(here.place) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(100))
        connection = connect(here, 2, 60.0)
        rank, joined = accepted.result(60)
        with pytest.raises(TimeoutError):
            listener.accept(0.0)
    assert rank == 2
    connection.send(b"hello")
    assert joined.receive() == b"hello"
    for one in (connection, joined):
        one.close()


@pytest.mark.parametrize("strangers", [1, MOST_CALLERS + 3])
def test_strangers_who_say_nothing_hold_up_nobody(strangers: int) -> None:
    with (
        ExitStack() as calls,
        Listener(DOOR, 60.0) as listener,
        ThreadPoolExecutor() as threads,
    ):
        accepted = threads.submit(listener.accept, 30.0)
        for _ in range(strangers):
            stranger = calls.enter_context(socket.create_connection(listener.door.place, 30.0))
            assert stranger.recv(1)  # it is being asked
        connection = connect(listener.door, 2, 30.0)
        rank, joined = accepted.result(30)
        assert rank == 2
        for one in (connection, joined):
            one.close()
        with pytest.raises(TimeoutError):
            listener.accept(0.1)
    # A listener that is closed asks nobody any longer.
    eventually(lambda: not any("_greet" in one.name for one in threading.enumerate()))


def test_a_leader_that_does_not_know_the_secret_is_not_followed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        imposter = threading.Thread(target=lambda: server.accept()[0].sendall(bytes(64)))
        imposter.start()
        with pytest.raises(ConnectionError, match="does not know the secret"):
            connect(Door(tcp(*server.getsockname()), b"secret"), 1, 60.0)
        imposter.join()


class Store:
    """JAX's store of keys, and all that was ever in it."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._values: dict[str, str] = {}
        self._told = threading.Event()

    def key_value_set(self, key: str, value: str) -> None:
        self.seen.append(value)
        self._values[key] = value
        if key == "key":
            self._told.set()

    def key_value_try_get(self, key: str) -> str:
        return self._values[key]

    def key_value_delete(self, key: str) -> None:
        pass

    def blocking_key_value_get(self, key: str, milliseconds: int) -> str:
        assert self._told.wait(60)
        return self._values[key]


@pytest.mark.parametrize("secret", [None, "a secret of all processes"])
def test_a_secret_that_was_given_is_told_to_nobody(
    secret: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous.distributed.global_state, "coordinator_address", "127.0.0.1:1")
    store, ends = Store(), list[Any]()
    settings = MultihostSettings.checked({"silence": 60.0}, secret)
    leader = threading.Thread(
        target=lambda: ends.append(rendezvous._gather(store, "key", [0, 1], settings))
    )
    leader.start()
    if secret is not None:
        with pytest.raises(ConfigError, match="process 0 has a secret, and this one, 1, has none"):
            rendezvous._find(store, "key", 1, 0, MultihostSettings())
        with pytest.raises(ConfigError, match=r"does not know the secret|cannot reach process 0"):
            rendezvous._find(store, "key", 1, 0, MultihostSettings(secret="other"))
    connection, host = rendezvous._find(store, "key", 1, 0, settings)
    connection.send(b"hello")
    leader.join(60)
    found, hosts = ends[0]
    assert found[1].receive() == b"hello"
    assert hosts == {1: host} == {1: socket.gethostname()}
    told = [one for one in store.seen if one != host]
    assert all(("secret" in one) == (secret is None) for one in told)
    assert "secret" not in repr(settings)


def test_a_secret_through_jax_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    rendezvous.warn_of_strangers("127.0.0.1")
    assert not caplog.text
    rendezvous.warn_of_strangers("10.0.0.7")
    assert "answers whoever reaches it. Set JENGINE_DATA_PARALLEL_SECRET" in caplog.text


def test_jax_meets_workers_at_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, made = list[Any](), list[Any]()

    def refuse(*given: Any, **more: Any) -> None:
        made.append(more)
        raise ConfigError("no devices here")

    monkeypatch.setattr(jax.distributed, "initialize", lambda *a, **more: asked.append((a, more)))
    monkeypatch.setattr(worker.EngineArgs, "checked", refuse)
    job = Job({"model": "demo"}, 0, 2, "10.0.0.7:9", Door("tcp://10.0.0.7:1", b"secret"), {})
    assert b"no devices here" in worker.run(msgspec.msgpack.encode(job))
    assert asked == [(("10.0.0.7:9", 2, 0), {"coordinator_bind_address": "10.0.0.7:9"})]
    assert made[0]["data_parallel_secret"] == "secret"


def test_the_channel_listens_on_the_address_that_reaches_the_coordinator() -> None:
    assert address_towards("127.0.0.1:1234") == "127.0.0.1"
    assert address_towards("localhost:1234") in ("127.0.0.1", "::1")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"silense": 3}, "no key 'silense'.*Did you mean 'silence'"),
        ({"silence": 0}, "a number above 0"),
        ({"compare_every": 1.5}, "a number above 0"),
        ({"meet": True}, "a number above 0"),
        ({"address": "0.0.0.0"}, "one address of process 0"),
        ({"address": ""}, "one address of process 0"),
    ],
)
def test_settings_are_checked(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MultihostSettings.checked(given)


def test_the_odd_one_is_named() -> None:
    usual = reports("requests", [("request 1", b"a"), ("request 2", b"b")])
    odd = reports("requests", [("request 1", b"a"), ("request 2", b"c")])
    assert problem_in({0: usual, 1: usual, 2: usual}) is None
    problem = problem_in({0: usual, 1: odd})
    assert problem and problem.startswith("process 1 differs from process 0: its requests differ")
    problem = problem_in({0: odd, 1: usual, 2: usual, 3: usual})
    assert problem and problem.startswith("process 0 differs from processes 1, 2 and 3: ")
    problem = problem_in({0: usual, 1: odd, 2: usual, 3: odd, 4: usual})
    assert problem and "'request 2'; process 3 differs as well." in problem
    fewer = problem_in({0: usual, 1: reports("requests", [])})
    assert fewer and "it has 0 requests where the others have 2" in fewer


def test_agreement_and_least(pair: tuple[LeaderChannel, FollowerChannel]) -> None:
    leader, follower = pair
    found = []
    other = threading.Thread(
        target=lambda: found.append(
            follower.agree(reports("cache", [("a", b"1")], 5), lambda message: None)
        )
    )
    other.start()
    verdict = leader.agree(reports("cache", [("a", b"1")], 7), lambda: None, ["x"])
    other.join()
    assert found == [verdict]
    assert (verdict.problem, verdict.least, verdict.names) == (None, 5, ["x"])


def test_who_leaves_is_named_to_who_needs_it(pair: tuple[LeaderChannel, FollowerChannel]) -> None:
    leader, follower = pair
    follower.leave("it had enough")
    with pytest.raises(EngineDead, match="process 1 on b has left this engine: it had enough"):
        leader.agree(reports("cache", []), lambda: None)
    with pytest.raises(EngineDead, match="process 1 on b has left"), leader.inside_step():
        pass


def test_a_leader_that_leaves_is_named(pair: tuple[LeaderChannel, FollowerChannel]) -> None:
    leader, follower = pair
    leader.leave("it had enough")
    for _ in range(2):
        with pytest.raises(EngineDead, match="process 0 on a has left this engine: it had enough"):
            follower.next()


@ends_a_thread
def test_leaving_in_the_middle_of_a_step_ends_all(
    pair: tuple[LeaderChannel, FollowerChannel], ends: list[str]
) -> None:
    leader, follower = pair
    with leader.inside_step():
        follower.leave("its program has ended")
        eventually(lambda: len(ends) == 2)  # the follower is told, and ends as well
    assert "process 1 on b left in the middle of a step: its program has ended" in ends[0]


@ends_a_thread
def test_who_has_a_steps_tokens_may_leave(
    pair: tuple[LeaderChannel, FollowerChannel], ends: list[str]
) -> None:
    """The leader's step has ended by then: otherwise a program's end were a lost process."""
    leader, follower = pair
    core: Any = MagicMock(step=list, drain=list, counts=Counts)
    leading = LeadingCore(core, MagicMock(), leader, ParameterDigests())
    told = leader.broadcast

    def tell_and_wait(message: Message) -> None:
        told(message)
        if isinstance(message, StepDone):
            follower.leave("its program has ended")
            eventually(lambda: not leader._inbox.empty() or bool(ends))

    leader.broadcast = tell_and_wait  # type: ignore[method-assign]
    assert leading.step() == []
    assert ends == []


@ends_a_thread
def test_a_stuck_step_is_noticed(
    pair: tuple[LeaderChannel, FollowerChannel], ends: list[str]
) -> None:
    leader, _ = pair
    leader.step = 7
    with leader.inside_step():
        # The follower is told and ends as well, which the leader then notices.
        eventually(lambda: len(ends) == 3)
    assert "step 7 has run for 0.5 s; process 1 did not begin it" in ends[0]


@ends_a_thread
def test_silence_is_noticed(ends: list[str]) -> None:
    ours, theirs = sockets(1.0)
    leader = LeaderChannel(0, {1: ours}, {1: "b"}, replace(SETTINGS, silence=1.0))
    eventually(lambda: ends)
    assert "process 1 on b showed no sign of life for 1 s" in ends[0]
    leader.leave("the test has ended")
    theirs.close()


def test_other_tokens_make_another_digest() -> None:
    traces = [StepDigest(2) for _ in range(3)]
    for step in range(4):
        plan = Plan(step, Entries.of([Entry(0, step, 1)]), 1)
        sampled = (1, 1, 2 if step == 2 else 1)
        outputs = [StepOutput(np.array([[token]], np.int32)) for token in sampled]
        found = [list(trace.add(plan, out)) for trace, out in zip(traces, outputs, strict=True)]
        assert [len(one) for one in found] == [step % 2] * 3
        assert found[0] == found[1]
        assert (found[0] == found[2]) == (step < 3)


class Steps:
    """A local executor whose plans run no step: the fetches that end with each."""

    def __init__(self, *ended: dict[int, bool]) -> None:
        self.ended = list(ended)

    def submit(self, plan: Plan) -> Any:
        output = StepOutput(np.zeros((0, 1), np.int32), transfers_done=self.ended.pop(0))
        return SimpleNamespace(ready=True, has_left=True, result=lambda: output)


def test_a_fetch_has_ended_when_a_follower_has_said_so_too(
    pair: tuple[LeaderChannel, FollowerChannel],
) -> None:
    leader, follower = pair
    here: Any = Steps({0: True, 1: True}, {}, {})
    there: Any = Steps({}, {0: False}, {1: True})
    leading = LeadingExecutor(here, leader, 1)
    following = FollowingExecutor(there, follower, 1)
    found = []
    for step, fetches in enumerate(([Fetch(0, 0, 1, b"k", ""), Fetch(1, 0, 2, b"l", "")], [], [])):
        transfers = Transfers(fetches=fetches)
        pending = leading.submit(Plan(step, Entries.of([]), 0, transfers=transfers))
        message = follower.next()
        assert isinstance(message, RunPlan)
        following.submit(message.plan)
        following.read_up_to(step)
        if step:
            eventually(leader.read)
        found.append(pending.result().transfers_done)
        assert follower.next() == StepRead(step)
    assert found == [{}, {0: False}, {1: True}]


class Worker:
    """A local executor that notes what it does; `may_end` is awaited in each result."""

    def __init__(self, rank: int, has_left: bool, may_end: threading.Event | None = None) -> None:
        self.rank, self.has_left, self.may_end = rank, has_left, may_end
        self.ended = threading.Event()
        self.done: list[Any] = []

    def submit(self, plan: Plan) -> Any:
        self.done.append(plan)
        return SimpleNamespace(ready=True, has_left=self.has_left, result=self._result)

    def _result(self) -> StepOutput:
        assert self.may_end is None or self.may_end.wait(60)
        self.ended.set()
        return StepOutput(np.zeros((1, 1), np.int32))

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        self.done.append((method, arguments))
        return [b"%d" % self.rank]

    def shutdown(self) -> None:
        self.done.append("shut down")


@pytest.mark.parametrize("has_left", [True, False])
def test_processes_without_requests_repeat_what_the_first_one_does(
    pair: tuple[LeaderChannel, FollowerChannel], has_left: bool
) -> None:
    """In a pipeline (`has_left` false) they also read a step while the first one does."""
    leader, follower = pair
    there: Any = Worker(1, has_left)
    here: Any = Worker(0, has_left, None if has_left else there.ended)
    leading = LeadingExecutor(here, leader, 1)
    following = FollowingExecutor(there, follower, 1)
    core = FollowingCore(following, follower, ParameterDigests(), lambda _: None)
    with ThreadPoolExecutor() as threads:
        left = threads.submit(worker.follow, core)
        plans = [Plan(step, Entries.of([Entry(0, step, 1)]), 1) for step in range(2)]
        pending = [leading.submit(plan) for plan in plans]
        for one in pending:
            one.result()
        assert leading.call_workers("memory", b"x") == [b"0", b"1"]
        leading.shutdown()
        assert left.result(60).endswith("has left this engine: it was shut down")
    assert here.done == there.done == [*plans, ("memory", b"x"), "shut down"]
    assert there.ended.is_set()


@ends_a_thread
def test_a_process_that_samples_something_else_is_named(
    pair: tuple[LeaderChannel, FollowerChannel], ends: list[str]
) -> None:
    leader, follower = pair
    here: Any = Worker(0, True)
    leading = LeadingExecutor(here, leader, 1)
    plan = Plan(0, Entries.of([Entry(0, 0, 1)]), 1)
    leading.submit(plan).result()
    follower.send(SampleDigest(0, b"other"))
    eventually(leader.read)
    with pytest.raises(SystemExit):
        leading.submit(Plan(1, plan.entries, 1)).result()
    assert "by step 0 process 1 has run or sampled something else than process 0" in ends[0]


@ends_a_thread
def test_what_ends_the_first_worker_is_told_to_the_others(
    pair: tuple[LeaderChannel, FollowerChannel], ends: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    class Server:
        def __init__(self, *_: Any) -> None:
            self.tell_end = told.append

        def serve(self, workers: Any, end: Callable[[str], None], capacity: Any) -> None:
            end("the driver was lost")

    monkeypatch.setattr(worker, "PlanServer", Server)
    monkeypatch.setattr(worker, "connect", lambda *_: None)
    direction = Direction()
    SeveralProcesses(pair[0], SETTINGS, direction)
    core = object.__new__(EngineCore)
    core.executor = SimpleNamespace()
    side: Any = SimpleNamespace(core=core, schedule=None, cache=None, depth=1)
    job = Job({"model": "demo"}, 0, 2, "10.0.0.7:9", Door("tcp://10.0.0.7:1", b"secret"), {})
    with pytest.raises(SystemExit):
        worker.lead(job, side, direction)
    eventually(lambda: len(ends) >= 2)
    assert told[0] == "the driver was lost"
    assert {f"process {rank} stops: the driver was lost" for rank in (0, 1)} <= {*ends}


def test_plans_without_a_step_do_not_make_a_digest_due() -> None:
    """The leader may be any number of them ahead, and keeps few digests; their transfers count."""
    output = StepOutput(np.zeros((0, 1), np.int32))
    idle = [Plan(step, Entries.of([]), 0, transfers=Transfers()) for step in range(9)]
    reset = Plan(8, Entries.of([]), 0, transfers=Transfers(reset=True))
    runs = Plan(9, Entries.of([Entry(0, 1, 1)]), 1)
    ones, others = StepDigest(2), StepDigest(2)
    assert not any(list(ones.add(plan, output)) for plan in (*idle, runs, *idle))
    assert not any(list(others.add(plan, output)) for plan in (*idle[:8], reset, runs, *idle))
    found = [list(trace.add(runs, output)) for trace in (ones, others)]
    assert [len(one) for one in found] == [1, 1] and found[0] != found[1]
    assert not any(list(ones.add(plan, output)) for plan in idle)


def test_a_witness_sees_shape_dtype_and_contents() -> None:
    array = np.arange(6000, dtype=np.float32).reshape(60, 100)
    changed = array + (np.arange(6000).reshape(60, 100) == 5999)
    notes = set()
    for values in (array, array.reshape(100, 60), array.astype(np.float64), changed):
        witness = ParameterDigests()
        witness.note("a", values)
        notes.add(witness.take()[0][1])
        assert witness.take() == []
    assert len(notes) == 4
    assert SampleDigest(1, b"x") == decode(encode(SampleDigest(1, b"x")))
    assert FetchesEnded({7: False}) == decode(encode(FetchesEnded({7: False})))


@pytest.mark.parametrize(
    "wrong",
    [
        ArrayFrame("<f4", (2, 2), b"\0" * 15),
        ArrayFrame("<f4", (-1, -4), b"\0" * 16),
        ArrayFrame("|O", (1,), b"\0" * 8),
        "no array",
    ],
)
def test_a_message_with_a_broken_array_is_no_message(wrong: Any) -> None:
    """A ValueError of numpy's would end the thread that listens, and nobody would be told."""
    part = msgspec.msgpack.Ext(ARRAY, msgspec.msgpack.encode(wrong))
    parts = [part] * len(StepLogprobs._fields)
    message = StepDone([TokenDelta(request_id="a", token_ids=[1], logprobs=parts)], Counts())
    with pytest.raises(BadFrame):
        decode(msgspec.msgpack.encode(message))


def test_log_probabilities_of_a_message_are_three_arrays() -> None:
    for wrong in ([np.zeros(1)], [1, 2, 3], "text"):
        message = StepDone([TokenDelta(request_id="a", token_ids=[1], logprobs=wrong)], Counts())
        with pytest.raises(BadFrame, match="that are no message: Expected"):
            decode(encode(message))
