"""The supervisor of API processes, with processes that are only told about."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from jengine.errors import ConfigError
from jengine.server import supervisor
from jengine.server.peers.board import Board, BoardField
from jengine.server.settings import ServerSettings
from jengine.server.supervisor import Supervisor
from tests.server.listening import PATIENCE, until


class Process:
    """An API process that ends when it is told to."""

    def __init__(self, *, obeys: bool = True) -> None:
        self.obeys = obeys
        self.signals: list[int] = []
        self.exited: Callable[[str], None] = lambda _: None
        self.when_first_signalled: Callable[[], object] = lambda: None

    def start(self, exited: Callable[[str], None]) -> None:
        self.exited = exited

    def signal(self, number: int) -> None:
        self.signals.append(number)
        if len(self.signals) == 1:
            self.when_first_signalled()
        if self.obeys or number == signal.SIGKILL:
            self.exited("it has ended")


class Core:
    """A core's client."""

    def __init__(self) -> None:
        self.dumps = 0
        self.watched = threading.Event()
        self.die: Callable[[Exception], None] = lambda _: None

    def when_dead(self, tell: Callable[[Exception], None]) -> None:
        self.die = tell
        self.watched.set()

    def dump_stacks(self) -> None:
        self.dumps += 1


def supervised(count: int = 2, *, obeys: bool = True, **settings: float):
    board = Board.alone()
    one = Supervisor(ServerSettings(**settings), board)  # type: ignore[arg-type]
    processes = [Process(obeys=obeys) for _ in range(count)]
    one.start(processes)  # type: ignore[arg-type]
    return one, processes, board


def once_it_runs(work: Callable[[], object]) -> None:
    """Do something after the supervisor has begun to take signals."""
    before = signal.getsignal(signal.SIGINT)  # the last that it takes over

    def wait() -> None:
        until(lambda: signal.getsignal(signal.SIGINT) is not before)
        work()

    threading.Thread(target=wait, daemon=True).start()


def test_a_signal_ends_all_with_status_0() -> None:
    one, processes, _ = supervised()
    once_it_runs(lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert one.run() == 0
    assert [process.signals for process in processes] == [[signal.SIGTERM]] * 2


def test_one_that_ends_by_itself_ends_the_others_with_status_1(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one, processes, _ = supervised(3)
    once_it_runs(lambda: processes[1].exited("API process 1 was killed by SIGKILL"))
    assert one.run() == 1
    assert processes[0].signals == processes[2].signals == [signal.SIGTERM]
    assert "The server ends: API process 1 was killed by SIGKILL" in caplog.text


def test_a_second_signal_is_passed_on_and_the_stubborn_are_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "LAST_SECONDS", 0.2)
    monkeypatch.setattr(supervisor, "LOOK", 0.05)
    one, (process,), _ = supervised(1, obeys=False, shutdown_timeout=0.1)
    process.when_first_signalled = lambda: os.kill(os.getpid(), signal.SIGINT)
    once_it_runs(lambda: os.kill(os.getpid(), signal.SIGINT))
    began = time.monotonic()
    assert one.run() == 0
    assert process.signals == [signal.SIGTERM, signal.SIGTERM, signal.SIGKILL]
    assert time.monotonic() - began > 0.29, "it has its time"


def test_cores_that_cannot_start_end_all(caplog: pytest.LogCaptureFixture) -> None:
    one, processes, _ = supervised()

    def work() -> list:
        raise ConfigError("told not\n   to start")

    one.prepare(work)
    assert one.run() == 1
    assert "The server ends: told not to start" in caplog.text
    assert processes[0].signals == [signal.SIGTERM]


def test_a_core_that_dies_is_logged_and_a_stall_dumps_stacks_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "LOOK", 0.01)
    one, _, board = supervised()
    core = Core()
    one.prepare(lambda: [core])  # type: ignore[list-item]

    def later() -> None:
        assert core.watched.wait(PATIENCE)
        core.die(RuntimeError("its last word"))
        board.note(BoardField.STUCK, 1)
        until(lambda: core.dumps)
        time.sleep(0.1)  # looks that must not dump again
        os.kill(os.getpid(), signal.SIGTERM)

    once_it_runs(later)
    assert one.run() == 0
    assert "A core has died: its last word" in caplog.text and core.dumps == 1
