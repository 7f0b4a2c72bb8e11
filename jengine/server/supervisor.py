"""Several API processes in front of the same cores: starts them, ends them together.

In: the cores of this process, and the job of each API process. Out: an exit status: 0 after a
signal, 1 if a process or the last core has died. Serves nothing itself, so that it is never busy.

The API processes inherit one listening socket. With a socket for each (SO_REUSEPORT) the system
would divide connections without asking who is free, and those queued at a process that dies would
be lost; here a free process takes the next one. One API process that dies ends the server, as its
requests are lost and its share of counters with them: the others drain first.

What must be added up at once (places in the queue, phases) is on a board in shared memory, where
each number has one writer. The rest (metrics, stored responses, admin routes) the processes ask
each other over local sockets (`server/peers`). A core's counters are taken from one of them, a
front's are summed.
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
# Seconds between two looks at the board.
LOOK = 0.25
# Seconds beyond --shutdown-timeout that an API process is given to end.
LAST_SECONDS = 10.0


class Signalled(NamedTuple):
    """A signal arrived."""

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
        self._deadline: float | None = None  # when processes that were told to end are killed
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
                self._end_all()  # a second signal reaches them too: they do not wait any longer
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
        if stalled and not self._stalled:  # an API process has said why
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
