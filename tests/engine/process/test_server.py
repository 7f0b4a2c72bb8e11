"""Fronts at one core: their requests, their questions, and what no front should send."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from jengine.engine.process import to_core
from jengine.engine.process.mailbox import Mailbox
from jengine.engine.process.to_core import AddRequest, Hello
from jengine.engine.questions import (
    AskHealth,
    AskStats,
    CallWorkers,
    Pause,
    Probe,
    ResetPrefixCache,
    Resume,
    Settle,
)
from jengine.errors import EngineDead, RequestError, UnexpectedCompile
from jengine.executor.calls import decoded_answers, encoded_arguments
from jengine.plan import RowSampling
from jengine.runner.report_types import ProgramCounts
from jengine.wire.message import encode
from tests.engine.process.cores import ThreadCore, eventually, read_all, thread_core, tokens
from tests.engine.scripted import told
from tests.engine.test_client import PROMPT, wire


def test_a_request_is_answered_as_in_process(tmp_path: Path) -> None:
    with thread_core(tmp_path) as (_, client):
        client.add(wire("a", max_tokens=6))
        client.add(wire("b", max_tokens=3))
        found = read_all(client)
        assert {name: tokens(deltas) for name, deltas in found.items()} == {
            "a": told(PROMPT, 6), "b": told(PROMPT, 3),
        }  # fmt: skip
        assert [deltas[-1].finish_reason for deltas in found.values()] == ["length", "length"]
        assert not client.has_work and client.outputs() == []


def test_log_probabilities_arrive_as_arrays(tmp_path: Path) -> None:
    with thread_core(tmp_path) as (_, client):
        sampling = RowSampling(logprobs=2, prompt_logprobs=1)
        one = msgspec.structs.replace(
            wire("a", max_tokens=2), sampling=sampling, skip_reading_prefix_cache=True
        )
        client.add(one)
        first, last = read_all(client)["a"]
        assert first.logprobs.values.shape == (1, 3) and first.logprobs.ids.dtype == "int32"
        assert first.prompt_logprobs.rank.shape == (len(PROMPT) - 1,)
        assert last.prompt_logprobs is None
        first.logprobs.values[:] = 0  # an array of its own, not a view of the message


def test_requests_that_can_never_run_are_refused_before_they_are_sent(tmp_path: Path) -> None:
    with thread_core(tmp_path, num_blocks=3) as (core, client):
        with pytest.raises(RequestError, match="expected at least 1"):
            client.add(wire("a", max_tokens=0))
        with pytest.raises(RequestError, match="the cache cannot hold"):
            client.add(wire("a", max_tokens=200))
        assert not client.has_work
        client.add(wire("a", max_tokens=20))
        with pytest.raises(RequestError, match="being answered already"):
            client.add(wire("a"))
        read_all(client)
        assert core.server.dropped == 0


def test_an_abort_gives_a_last_delta_and_an_unknown_one_nothing(tmp_path: Path) -> None:
    with thread_core(tmp_path, step_seconds=0.002) as (_, client):
        client.add(wire("a", max_tokens=900))
        client.abort("never seen")
        client.abort("a")
        client.abort("a")
        client.ask(Settle())
        assert client.ask(AskStats()).running + client.ask(AskStats()).waiting == 0
        (deltas,) = read_all(client).values()
        assert deltas[-1].finish_reason == "abort"
        client.add(wire("b", max_tokens=1))
        assert tokens(read_all(client)["b"]) == told(PROMPT, 1)


def test_questions_reach_the_core(tmp_path: Path) -> None:
    with thread_core(tmp_path) as (_, client):
        (counts,) = decoded_answers("programs", client.ask(
            CallWorkers("programs", encoded_arguments("programs"))))  # fmt: skip
        assert counts == ProgramCounts(3, 1)
        assert client.ask(AskHealth())[0].where == "script"
        assert client.ask(ResetPrefixCache()) and client.ask(ResetPrefixCache(True))
        client.ask(Probe())
        client.add(wire("a", max_tokens=2))
        read_all(client)
        assert client.ask(AskStats()).prefix_queries > 0
        eventually(lambda: client.state().counts.prefix_queries > 0)
        assert client.state().steps > 0 and client.state().age < 5


def test_errors_of_questions_arrive_with_their_class(tmp_path: Path) -> None:
    with thread_core(tmp_path, step_seconds=0.002) as (_, client):
        client.add(wire("a", max_tokens=900))
        client.ask(Settle())
        with pytest.raises(RequestError, match="their steps show as much"):
            client.ask(Probe())
        client.abort("a")
        read_all(client)


def test_while_paused_no_step_runs_and_nothing_is_lost(tmp_path: Path) -> None:
    with thread_core(tmp_path, step_seconds=0.002) as (_, client):
        client.add(wire("a", max_tokens=40))
        got = client.outputs()
        client.ask(Pause())
        got += client.outputs(wait=False)
        eventually(lambda: client.state().paused)
        steps = client.ask(AskStats()), client.state().steps
        client.add(wire("b", max_tokens=2))
        client.ask(Settle())
        assert client.outputs() == [], "a reader is not held up while paused"
        eventually(lambda: client.state().counts.waiting == 1)
        assert client.state().steps == steps[1]
        client.ask(Resume())
        for deltas in (rest := read_all(client)).values():
            got += deltas
        assert tokens([one for one in got if one.request_id == "a"]) == told(PROMPT, 40)
        assert tokens(rest["b"]) == told(PROMPT, 2)


def test_names_of_several_fronts_do_not_clash(tmp_path: Path) -> None:
    with thread_core(tmp_path, step_seconds=0.001) as (core, client):
        other = core.front()
        client.add(wire("a", max_tokens=30))
        other.add(wire("a", max_tokens=12))
        assert tokens(read_all(other)["a"]) == told(PROMPT, 12)
        assert tokens(read_all(client)["a"]) == told(PROMPT, 30)
        other.shutdown()
        client.add(wire("b", max_tokens=1))
        assert read_all(client)["b"], "the core goes on for the front that owns it"


def test_a_front_that_leaves_has_its_requests_ended(tmp_path: Path) -> None:
    with thread_core(tmp_path, step_seconds=0.002) as (core, client):
        other = core.front()
        other.add(wire("a", max_tokens=900))
        other.ask(Settle())
        now = client.ask(AskStats())
        assert now.running + now.waiting == 1
        other.shutdown()
        eventually(lambda: client.ask(AskStats()).running + client.ask(AskStats()).waiting == 0)
        with pytest.raises(EngineDead, match="was shut down"):
            other.add(wire("b"))


@pytest.mark.parametrize("paused", [False, True], ids=["running", "idle"])
def test_a_front_that_vanishes_has_its_requests_ended(tmp_path: Path, paused: bool) -> None:
    with thread_core(tmp_path, step_seconds=0.002) as (core, client):
        if paused:
            client.ask(Pause())
        raw = RawFront(core)
        raw.send(encode(Hello()))
        raw.send(encode(AddRequest(wire("a", max_tokens=900))))
        eventually(lambda: client.ask(AskStats()).running + client.ask(AskStats()).waiting == 1)
        raw.close()
        eventually(lambda: client.ask(AskStats()).running + client.ask(AskStats()).waiting == 0)


def test_a_step_that_never_ran_ends_its_requests_and_the_core_goes_on(tmp_path: Path) -> None:
    with thread_core(tmp_path, refuses_at=3) as (_, client):
        client.add(wire("a", max_tokens=50))
        deltas = []
        with pytest.raises(UnexpectedCompile, match="told to need a program"):
            while True:
                deltas += client.outputs()
        deltas += read_all(client)["a"]
        assert deltas[-1].finish_reason == "abort"
        client.add(wire("b", max_tokens=2))
        assert tokens(read_all(client)["b"]) == told(PROMPT, 2)


def test_a_step_that_fails_ends_the_core_for_all_fronts(tmp_path: Path) -> None:
    with thread_core(tmp_path, fails_at=4, step_seconds=0.01) as (core, client):
        other = core.front()
        died = []
        other.when_dead(died.append)
        client.add(wire("a", max_tokens=50))
        with pytest.raises(EngineDead, match="a step failed: RuntimeError: told to fail"):
            read_all(client)
        with pytest.raises(EngineDead, match="told to fail"):
            client.ask(AskStats())
        eventually(lambda: died)
        with pytest.raises(EngineDead, match="told to fail"):
            other.check_alive()
        eventually(lambda: isinstance(core.problem, EngineDead))
        assert not client.has_work, "it is said once"
        other.shutdown()


# --- what no front should send -------------------------------------------------------------------


class RawFront:
    """A connection that sends any bytes."""

    def __init__(self, core: ThreadCore) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 200)
        self._socket.connect(core.address)

    def send(self, *parts: bytes) -> None:
        self._socket.send_multipart(parts)

    def close(self) -> None:
        self._socket.close()
        self._context.term()


HOSTILE = [
    b"", b"\xc1", b"\xff" * 100, encode(Hello())[:-1], b"\x90", b"\x80",
    b"\x92\xaaAddRequest\xc0", b"\x92\xacAbortRequest\x01", b"\x92\xa3Ask\x01", b"\x91\xa5Ready",
    b"\x91" * 5000, b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xc7\x01\x01\x00",
    msgspec.msgpack.encode(["AddRequest", {"request_id": "x", "prompt_token_ids": [2**70 >> 8]}]),
    encode(AddRequest(wire("x", max_tokens=3))).replace(b"max_tokens", b"min_tokens"),
]  # fmt: skip


@pytest.fixture(scope="module")
def hardened(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("core")
    with thread_core(folder) as (core, client):
        raw = RawFront(core)
        raw.send(encode(Hello()))
        yield core, client, raw
        raw.close()


@pytest.mark.parametrize("frame", HOSTILE, ids=range(len(HOSTILE)))
def test_frames_that_are_no_message_are_dropped_and_counted(hardened, frame: bytes) -> None:
    core, client, raw = hardened
    before = core.server.dropped
    raw.send(frame)
    eventually(lambda: core.server.dropped == before + 1)
    client.add(wire("a", max_tokens=2))
    assert tokens(read_all(client)["a"]) == told(PROMPT, 2)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=4))
def test_random_frames_never_end_the_engine(hardened, parts: list[bytes]) -> None:
    core, client, raw = hardened
    raw.send(*parts)
    client.add(wire("a", max_tokens=1))
    assert tokens(read_all(client)["a"]) == told(PROMPT, 1)
    assert core.problem is None


def test_frames_that_break_the_protocol_are_dropped(
    hardened,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core, client, _ = hardened
    stranger = RawFront(core)
    before = core.server.dropped
    stranger.send(encode(AddRequest(wire("a"))))  # before Hello
    stranger.send(encode(Hello()), b"and more")
    monkeypatch.setattr(to_core.decode_from_front, "most_bytes", 5000)
    stranger.send(encode(AddRequest(wire("b" * 5000))))
    eventually(lambda: core.server.dropped == before + 3)
    stranger.close()
    eventually(lambda: client.state().dropped_frames == core.server.dropped)


def test_a_front_that_comes_late_learns_what_the_cache_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jengine.engine.process.message_outbox.MOST_CHANGES", 2)
    with thread_core(tmp_path) as (core, client):
        early = core.front(Mailbox())
        prompt = list(range(3, 3 + 5 * 16))
        client.add(msgspec.structs.replace(wire("a", max_tokens=2), prompt_token_ids=prompt))
        read_all(client)
        eventually(lambda: len(early.contents) == 5)
        late = core.front(Mailbox())
        eventually(lambda: len(late.contents) == 5)
        hashes = [*early.contents]
        assert late.contents.prefix(hashes) == 5
        client.ask(ResetPrefixCache())
        eventually(lambda: not len(early.contents) and not len(late.contents))
        assert not len(client.contents), "only fronts that route requests are told"
        for front in (early, late):
            front.shutdown()
