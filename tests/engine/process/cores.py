"""Scripted cores for tests: in a thread of this process behind a real socket, or in a child."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from jengine.engine.process.client import ProcessClient
from jengine.engine.process.core_server import CoreServer, Served
from jengine.engine.process.launch import launch
from jengine.engine.process.mailbox import Mailbox
from jengine.outputs import TokenDelta
from tests.engine.process.scripted_core import Settings, served_core

PROGRAM = "tests.engine.process.scripted_core"


class ThreadCore:
    """A server whose steps run in a thread of this process."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.address = f"ipc://{folder / 'core'}"
        served = served_core(settings)
        self.core = served.client
        self.server = CoreServer(self.address)
        self.problem: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, args=(served,))
        self._thread.start()

    def end(self) -> None:
        """As the end of a child: called by the client that owns the core."""
        self._thread.join(60)
        assert not self._thread.is_alive()

    def kill(self) -> None:
        raise AssertionError("the core became ready, so it ends by itself")

    def dump_stacks(self) -> None:
        raise AssertionError("its threads are this process's")

    def front(self, mailbox: Mailbox | None = None) -> ProcessClient:
        """Another front, which does not end the core."""
        client = ProcessClient(self.address, mailbox=mailbox)
        client.wait_until_ready(seconds=60)
        return client

    def _serve(self, served: Served) -> None:
        try:
            self.server.serve(served)
        except BaseException as error:
            self.problem = error


@contextmanager
def thread_core(folder: Path, **settings: object) -> Iterator[tuple[ThreadCore, ProcessClient]]:
    """A core in a thread, and the client that ends it."""
    core = ThreadCore(folder, msgspec.convert(settings, Settings))
    client = ProcessClient(core.address, child=core)
    client.wait_until_ready(seconds=60)
    try:
        yield core, client
    finally:
        client.shutdown()


@contextmanager
def child_core(**settings: object) -> Iterator[ProcessClient]:
    """A core in a child process."""
    data = msgspec.msgpack.encode(msgspec.convert(settings, Settings))
    client = launch(PROGRAM, data)
    try:
        client.wait_until_ready(seconds=60)
        yield client
    finally:
        client.shutdown()


def read_all(client: ProcessClient) -> dict[str, list[TokenDelta]]:
    """Every delta of every open request, by request."""
    found: dict[str, list[TokenDelta]] = {}
    while client.has_work:
        for delta in client.outputs():
            found.setdefault(delta.request_id, []).append(delta)
    return found


def tokens(deltas: list[TokenDelta]) -> list[int]:
    """Their tokens, one after the other."""
    return [token for delta in deltas for token in delta.token_ids]


def eventually(is_so: Callable[[], object], seconds: float = 60.0) -> None:
    """Fail unless something becomes true in time."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it did not become true in time"
        time.sleep(0.005)
