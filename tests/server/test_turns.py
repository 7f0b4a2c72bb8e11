"""New requests begin in turn, between the tokens of running streams."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from jengine.server.http import turns
from jengine.server.http.chunked import ChunkWriter
from jengine.server.http.patience import PatientProtocol
from jengine.server.http.turns import End, RequestTurns, end_turn, no_turn
from tests.server.listening import COMPLETIONS, Client, Listening, listening, until

PATH = COMPLETIONS.encode()


class ScriptedFlow:
    """Tokens that are on their way until a test says otherwise."""

    def __init__(self) -> None:
        self.outputs_under_way = False
        self._after: list[Callable[[], object]] = []

    def after_outputs(self, call: Callable[[], object]) -> None:
        self._after.append(call)

    def pass_on(self) -> None:
        """The tokens have been sent; the next ones are under way."""
        after, self._after = self._after, []
        for call in after:
            call()


async def passes(count: int) -> None:
    """Run the event loop so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


class Queue:
    """RequestTurns, the flow of tokens, and the numbers of the requests that have begun."""

    def __init__(self) -> None:
        self.flow = ScriptedFlow()
        self.turns = RequestTurns(self.flow)
        self.begun: list[int] = []
        self.ends: list[End] = []

    def enter(self, count: int, *, ends: bool = True) -> None:
        """More requests, whose turns end at once or by `ends`."""
        for number in range(count):
            self.turns.enter(partial(self._begin, number, ends))

    def _begin(self, number: int, ends: bool, end: End) -> None:
        self.begun.append(number)
        assert end_turn.get() is end
        if ends:
            end()
        self.ends.append(end)


def test_one_request_begins_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        queue = Queue()
        queue.enter(3, ends=False)
        assert queue.begun == []
        for count in (1, 2, 3):
            await passes(5)
            assert queue.begun == [*range(count)]
            for end in queue.ends:  # those of earlier turns do nothing
                end()
        queue.enter(1)
        await passes(1)
        assert queue.begun == [0, 1, 2, 0]
        assert end_turn.get() is no_turn

    monkeypatch.setattr(turns, "LONGEST", 3600)
    asyncio.run(check())


def test_a_turn_ends_by_itself() -> None:
    async def check() -> None:
        queue = Queue()
        queue.enter(3, ends=False)
        async with asyncio.timeout(60):
            while len(queue.begun) < 3:
                await asyncio.sleep(0.001)

    asyncio.run(check())


def test_none_begins_while_tokens_are_under_way() -> None:
    async def check() -> None:
        queue = Queue()
        queue.enter(2)
        await passes(1)
        queue.flow.outputs_under_way = True
        await passes(5)
        assert queue.begun == [0, 1]  # its turn had come
        queue.enter(2)
        await passes(5)
        assert queue.begun == [0, 1]
        queue.flow.outputs_under_way = False
        queue.flow.pass_on()
        await passes(1)
        assert queue.begun == [0, 1, 0, 1]

    asyncio.run(check())


def test_all_begin_after_the_tokens_of_a_server_that_cannot_keep_up() -> None:
    """One per pass, whether or not the one before is queued."""

    async def check() -> None:
        queue = Queue()
        queue.flow.outputs_under_way = True
        queue.enter(3, ends=False)
        await passes(5)
        assert queue.begun == []
        queue.flow.pass_on()
        for count in (1, 2, 3):
            assert queue.begun == [*range(count)]
            await passes(1)
        queue.enter(1)
        queue.ends[-1]()
        await passes(5)
        assert queue.begun == [0, 1, 2]
        queue.flow.pass_on()
        assert queue.begun == [0, 1, 2, 0]

    asyncio.run(check())


@pytest.fixture(scope="module")
def server() -> Iterator[Listening]:
    with listening() as one:
        yield one


def test_requests_wait_for_tokens_and_questions_do_not(
    server: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, happened = server.engine.session, list[str]()
    goes_on, holds, made = threading.Event(), threading.Event(), session.process
    begin, write = PatientProtocol._begin, ChunkWriter.write
    calls = itertools.count()

    def process() -> Any:
        if next(calls) > 3:
            holds.set()
            assert goes_on.wait(60), "the test holds these tokens for ever"
        return made()

    def begins(self: PatientProtocol, end: End) -> None:
        happened.append("begin")
        begin(self, end)

    async def writes(self: ChunkWriter, part: bytes) -> None:
        happened.append("write")
        await write(self, part)

    monkeypatch.setattr(ChunkWriter, "write", writes)
    monkeypatch.setattr(session, "process", process)
    first = server.connect(prompt="a", max_tokens=200, stream=True, ignore_eos=True)
    requests = server.service.live.requests
    assert holds.wait(60) and requests.outputs_under_way
    monkeypatch.setattr(PatientProtocol, "_begin", begins)
    first.read_until(b"data: ")
    for _ in range(3):  # what was told of before is written
        server.on_loop(lambda: None)
    written = len(happened)
    second = server.connect(prompt="b", max_tokens=1)
    until(lambda: requests._after)  # it has come, and waits
    health = Client(server.port)
    health.sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert health.status == 200 and len(happened) == written
    goes_on.set()
    assert second.status == 200
    assert happened[written : written + 2] == ["write", "begin"]
    first.read_until(b"[DONE]")
    for client in (first, second, health):
        client.leave()
    server.wait_until_idle()


def test_a_request_in_pieces_and_one_that_leaves_before_its_turn(server: Listening) -> None:
    body = json.dumps({"prompt": "ab", "max_tokens": 2}).encode()
    data = (
        b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (PATH, len(body), body)
    )
    for cut in (2, 5, 30, len(data) - 3):
        client = Client(server.port)
        client.sock.sendall(data[:cut])
        client.sock.sendall(data[cut:])
        assert client.status == 200
        client.leave()
        leaving = Client(server.port)
        leaving.sock.sendall(data)
        leaving.leave()
    server.wait_until_idle()


def test_what_keeps_a_request_waiting_keeps_no_other(
    server: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body that does not come, an answer that is refused, and threads that are all busy."""
    monkeypatch.setattr(turns, "LONGEST", 3600)
    slow = Client(server.port)
    slow.sock.sendall(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n" % PATH)
    for prompt, status in ((3.5, 400), ("a", 200), ("b", 200)):
        client = server.connect(prompt=prompt, max_tokens=1)
        assert client.status == status
        client.leave()
    goes_on, rendering = threading.Event(), server.service.live.rendering
    prompt = rendering.prompt

    def held(given: Any, how: Any) -> Any:
        assert given != "held" or goes_on.wait(60), "the test holds this prompt for ever"
        return prompt(given, how)

    monkeypatch.setattr(rendering, "prompt", held)
    monkeypatch.setattr(turns, "LONGEST", 0.002)
    first = [server.connect(prompt="held", max_tokens=1) for _ in range(rendering.short.threads)]
    until(lambda: rendering.short.busy == rendering.short.threads)
    monkeypatch.setattr(turns, "LONGEST", 3600)
    more = server.connect(prompt="c", max_tokens=1)
    until(lambda: server.service.open_requests == len(first) + 1)
    last = server.connect(prompt=[5], max_tokens=1, model="none")
    assert last.status == 404
    goes_on.set()
    for client in (*first, more):
        assert client.status == 200
    for client in (slow, *first, more, last):
        client.leave()
    server.wait_until_idle()
