"""Clients that leave at any moment: their requests end within a step, and nothing stays behind."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Iterator

import pytest

from jengine.server.serving.rendering import Rendering
from tests.server.listening import PATIENCE, Client, Listening, listening, until
from tests.server.serving import letters_engine

LONG = {"prompt": "abc", "max_tokens": 1000, "ignore_eos": True}


@pytest.fixture
def server() -> Iterator[Listening]:
    with listening() as one:
        yield one
        one.wait_until_idle()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_leaves_ends_its_request_within_steps(
    server: Listening, stream: bool, n: int
) -> None:
    server.script.step_seconds = 0.02
    client = server.connect(**LONG, stream=stream, n=n, temperature=1.0)
    if stream:
        client.read_until(b"data: ")
    until(lambda: server.held[0] == n, lambda: f"held: {server.held}")
    before = server.script.steps
    client.leave()
    server.wait_until_idle()
    assert server.script.steps - before <= 250, "noticing takes a moment, not a whole answer"
    assert server.connect(prompt="a", max_tokens=2).status == 200


def test_a_client_that_leaves_while_it_is_queued(server: Listening) -> None:
    server.script.step_seconds = 0.01
    running = [server.connect(**LONG, stream=True) for _ in range(8)]
    for client in running:
        client.read_until(b"data: ")
    waiting = [server.connect(**LONG, stream=stream) for stream in (True, False)]
    until(lambda: server.held[:3] == (8, 2, 10), lambda: f"held: {server.held}")
    for client in waiting:
        client.leave()
    until(lambda: server.held[:3] == (8, 0, 8), lambda: f"held: {server.held}")
    for client in running:
        client.leave()


def test_a_client_that_leaves_while_its_prompt_is_tokenized(
    server: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on = threading.Event(), threading.Event()
    render = Rendering.prompt

    def slowly(self: Rendering, *arguments: object) -> object:
        entered.set()
        assert go_on.wait(PATIENCE)
        return render(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Rendering, "prompt", slowly)
    steps = server.script.steps
    for stream in (True, False):
        entered.clear()
        go_on.clear()
        client = server.connect(**LONG, stream=stream)
        assert entered.wait(PATIENCE)
        client.leave()
        until(lambda: server.service.open_requests == 0, lambda: "its place is kept")
        go_on.set()
    time.sleep(0.1)
    assert server.script.steps == steps, "it must not run any more"


def test_half_a_request_is_no_request(server: Listening) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    for sent in (head, head + b'Content-Length: 100\r\n\r\n{"prompt": "a"'):
        client = Client(server.port)
        client.sock.sendall(sent)
        time.sleep(0.05)
        client.leave()
    assert server.connect(prompt="a", max_tokens=1).status == 200


def cycles(server: Listening, count: int, seed: int) -> None:
    """Clients that leave at random moments."""
    rng = random.Random(seed)
    clients: list[Client] = []
    for _ in range(count):
        body = {
            **LONG,
            "max_tokens": 20,
            "prompt": "abc" * rng.randint(1, 60),
            "n": rng.choice((1, 1, 3)),
        }
        stream = rng.random() < 0.6
        client = server.connect(**body, stream=stream, temperature=1.0)
        if stream and rng.random() < 0.3:
            client.read_until(b"data: ")
        elif rng.random() < 0.3:
            time.sleep(rng.random() * 0.01)
        clients.append(client)
        if len(clients) > rng.randint(0, 12):
            clients.pop(rng.randrange(len(clients))).leave()
    for client in clients:
        client.leave()


def test_two_hundred_clients_that_leave_at_random_leave_nothing() -> None:
    with listening(letters_engine(max_num_seqs=6)) as server:
        server.script.step_seconds = 0.001
        cycles(server, 20, seed=1)  # what is made once is made now
        server.wait_until_idle()
        before = resources(server)
        cycles(server, 200, seed=2)
        server.wait_until_idle()
        until(lambda: no_more(server, before), lambda: f"{before} -> {resources(server)}")
        assert server.engine.session.open_answers == []


def no_more(server: Listening, before: tuple[int, ...]) -> bool:
    """Whether nothing is used that was not used before."""
    return all(now <= then for now, then in zip(resources(server), before, strict=True))


def resources(server: Listening) -> tuple[int, int, int]:
    """Open files, tasks of the server's loop, threads."""
    files = len(os.listdir("/proc/self/fd"))
    tasks = server.on_loop(lambda: len(asyncio.all_tasks()))
    return files, tasks, threading.active_count()


@pytest.mark.slow
def test_a_minute_of_clients_that_leave() -> None:
    with listening(letters_engine(max_num_seqs=6)) as server:
        cycles(server, 100, seed=0)
        server.wait_until_idle()
        before, end, turn = resources(server), time.monotonic() + 60, 0
        while time.monotonic() < end:
            turn += 1
            cycles(server, 200, seed=turn)
            server.wait_until_idle()
        until(lambda: no_more(server, before), lambda: f"{before} -> {resources(server)}")
