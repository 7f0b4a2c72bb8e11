"""Parent of several API processes in front of the same cores: starts and ends them together.

In: the cores of this process, and the job of each API process. Out: an exit status: 0 after a
signal, 1 if a process or the last core has died. Serves no requests itself, so that it is always
responsive.

The API processes inherit one listening socket, so a free process accepts the next connection. With
SO_REUSEPORT the kernel would assign connections regardless of load, and lose those queued at a
process that dies. If an API process dies, its requests and counters are lost, so the server ends:
the others drain first.

Counters that must be summed at once (queue places, phases) are in shared memory, with one writer
per number. For the rest (metrics, stored responses, admin routes) the processes call each other
over Unix sockets (`server/peers`). Core counters are taken from one process, front-end counters are
summed.
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from jengine.confined.owned_process import OwnedProcess
from jengine.engine.process.client import ProcessClient
from jengine.errors import EngineDead, JengineError
from jengine.server.peers.board import Board, BoardField
from jengine.server.settings import ServerSettings

logger = logging.getLogger(__name__)
# Poll interval of the board, in seconds.
LOOK = 0.25
# Seconds beyond --shutdown-timeout after which an API process is killed.
LAST_SECONDS = 10.0


class Signalled(NamedTuple):
    number: int


class ApiProcessEnded(NamedTuple):
    """An API process exited."""

    index: int
    how: str


class Failed(NamedTuple):
    """The cores failed to start."""

    why: str


News = Signalled | ApiProcessEnded | Failed


class Supervisor:
    """Parent process: starts the API processes and the cores, and ends all of them together."""

    def __init__(self, settings: ServerSettings, board: Board) -> None:
        self.status = 0
        self._settings = settings
        self._board = board
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._living: dict[int, OwnedProcess] = {}
        self._cores: Sequence[ProcessClient] = ()
        self._deadline: float | None = None  # when processes that were told to exit are killed
        self._stalled = False

    def start(self, processes: Sequence[OwnedProcess]) -> None:
        for index, process in enumerate(processes):
            self._living[index] = process
            process.start(lambda how, index=index: self._news.put(ApiProcessEnded(index, how)))

    def prepare(self, work: Callable[[], Sequence[ProcessClient]]) -> None:
        """Start the cores in a thread and watch them. `work` returns this host's cores when all are
        ready."""

        def run() -> None:
            try:
                self._watch(work())
            except JengineError as error:
                self._news.put(Failed(" ".join(str(error).split())))
            except Exception as error:
                logger.error("The engine could not be started", exc_info=error)
                self._news.put(Failed(f"{type(error).__name__}: {error}"))

        threading.Thread(target=run, name="jengine-start", daemon=True).start()

    def run(self) -> int:
        """Run until every API process has exited. Returns the exit status."""
        with self._signals():
            while self._living:
                try:
                    self._take(self._news.get(timeout=LOOK))
                except queue.Empty:
                    self._look()
        return self.status

    def _watch(self, cores: Sequence[ProcessClient]) -> None:
        self._cores = cores
        for core in cores:
            core.when_dead(self._lost)

    def _lost(self, error: EngineDead) -> None:
        """A core died. API processes notice it themselves, and end when no core is left."""
        if self._deadline is None:
            logger.error("A core has died: %s", error)

    def _take(self, news: News) -> None:
        match news:
            case Signalled(number):
                if self._deadline is None:
                    logger.info("%s: shutting down.", signal.Signals(number).name)
                self._end_all()  # a second signal reaches them too and ends the drain
            case ApiProcessEnded(index, how):
                del self._living[index]
                if self._deadline is None:
                    self._give_up(f"{how}. The other API processes finish their requests")
            case Failed(why):
                if self._deadline is None:
                    self._give_up(why)

    def _give_up(self, why: str) -> None:
        logger.critical("The server ends: %s", why)
        self.status = 1
        self._end_all()

    def _end_all(self) -> None:
        if self._deadline is None:
            self._deadline = time.monotonic() + self._settings.shutdown_timeout + LAST_SECONDS
        for process in self._living.values():
            process.signal(signal.SIGTERM)

    def _look(self) -> None:
        if self._deadline is not None and time.monotonic() > self._deadline:
            for process in self._living.values():
                process.signal(signal.SIGKILL)
        stalled = self._board.total(BoardField.STUCK) > 0
        if stalled and not self._stalled:  # logged by an API process
            for core in self._cores:
                core.dump_stacks()
        self._stalled = stalled

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Turn SIGTERM and Ctrl-C into events of the main loop."""
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = [
            signal.signal(number, lambda found, _: self._news.put(Signalled(found)))
            for number in numbers
        ]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)
