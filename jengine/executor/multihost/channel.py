"""The leader's and a follower's end of the channel between processes.

In and out: messages, in order. Both ends detect lost or stuck processes and then end their own.
Must not know requests, weights or devices.
"""

from __future__ import annotations

import atexit
import logging
import queue
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NoReturn

from jengine.errors import EngineDead, UnexpectedCompile
from jengine.executor.multihost.agreement import listed, plural, problem_in
from jengine.executor.multihost.ending import end_process
from jengine.executor.multihost.messages import (
    Fatal,
    FetchesEnded,
    FollowerAbort,
    Goodbye,
    Report,
    ReportDue,
    SampleDigest,
    Verdict,
)
from jengine.executor.multihost.peer import Peer, process_name
from jengine.executor.multihost.settings import MultihostSettings
from jengine.executor.protocol import WorkerHealth
from jengine.forks import not_in_forks
from jengine.wire.connection import Connection
from jengine.wire.message import Message, encode

logger = logging.getLogger(__name__)
# Seconds to wait after a failure for news of another process's death, which may be its cause.
GRACE = 2.0


class LeaderChannel:
    """The leader's end: sends to every follower and receives from each."""

    def __init__(
        self,
        rank: int,
        connections: Mapping[int, Connection],
        hosts: Mapping[int, str],
        settings: MultihostSettings,
    ) -> None:
        self.rank = rank
        self.step = -1
        self.ends: deque[tuple[int, str]] = (
            deque()
        )  # (process, request) cancelled by a follower's client
        self.samples: deque[tuple[int, SampleDigest]] = deque()
        self.fetches: deque[tuple[int, dict[int, bool]]] = deque()  # KV fetches ended in a follower
        self.observers: list[
            Callable[[str], None]
        ] = []  # called with the reason when the engine ends
        self._settings = settings
        self._peers = {
            other: Peer(other, one, settings, process_name(other, hosts[other]))
            for other, one in connections.items()
        }
        self._inbox: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()
        self._reports: dict[int, deque[Report]] = defaultdict(deque)
        self._asked = 0
        self._step_began: float | None = None
        self._ending = threading.Lock()
        for peer in self._peers.values():
            peer.start(self._receive, self.end_all, self._step_in_time)
        self._at_exit = not_in_forks(self.leave)
        atexit.register(self._at_exit, "its program has ended")

    @property
    def ranks(self) -> list[int]:
        """All processes of this engine, the leader first."""
        return [self.rank, *self._peers]

    def broadcast(self, message: Message) -> None:
        data = encode(message)
        for peer in self._peers.values():
            peer.send(data)

    def tell(self, rank: int, message: Message) -> None:
        self._peers[rank].send(encode(message))

    @contextmanager
    def inside_step(self) -> Iterator[None]:
        """Arm the step deadline; a process that leaves or fails while a step runs ends the engine.
        Nested, the outer deadline counts."""
        outer = self._step_began
        self._step_began = outer or time.monotonic()
        try:
            self.check_nobody_left()
            with failing_together(self):
                yield
        finally:
            self._step_began = outer

    def check_nobody_left(self) -> None:
        """Raise EngineDead if a follower has left."""
        for peer in self._peers.values():
            if peer.farewell is not None:
                raise EngineDead(f"{peer.name} has left this engine: {peer.farewell}")

    def read(self, timeout: float | None = None) -> bool:
        """Sort one received message into its queue. False if none arrives before the timeout; None
        polls."""
        try:
            rank, message = self._inbox.get(timeout is not None, timeout)
        except queue.Empty:
            return False
        if isinstance(message, Report):
            self._reports[rank].append(message)
        elif isinstance(message, FollowerAbort):
            self.ends.append((rank, message.request_id))
        elif isinstance(message, SampleDigest):
            self.samples.append((rank, message))
        elif isinstance(message, FetchesEnded):
            self.fetches.append((rank, message.done))
        elif not isinstance(message, Goodbye):  # handled by `Peer`
            self.end_all(f"process {rank} sent a {type(message).__name__} to the leader")
        return True

    def read_all(self) -> None:
        """Sort all received messages into their queues."""
        while self.read():
            pass

    @property
    def has_report(self) -> bool:
        """Whether a follower is blocked in `agree`."""
        return any(self._reports.values())

    def agree(
        self, report: Report, meanwhile: Callable[[], None], names: Sequence[str] = ()
    ) -> Verdict:
        """Wait for every process's report, compare them, and broadcast the verdict.

        `meanwhile` is called while waiting, to handle other messages. `names` are this process's
        ids of the reported requests, which followers adopt.
        """
        self.broadcast(ReportDue(self._asked))
        self._asked += 1
        while missing := [rank for rank in self._peers if not self._reports[rank]]:
            if not self.read(self._settings.silence):
                logger.warning("waiting for %s %s", plural(missing), listed(missing))
            meanwhile()
            self.check_nobody_left()
        reports = {rank: self._reports[rank].popleft() for rank in self._peers}
        reports = {self.rank: report, **reports}
        least = min(report.number for report in reports.values())
        answers = [reports[rank].answer for rank in sorted(reports)]
        verdict = Verdict(problem_in(reports), least, list(names), answers)
        self.broadcast(verdict)
        return verdict

    def health(self) -> list[WorkerHealth]:
        return [
            WorkerHealth(peer.rank, peer.name, peer.step, peer.silent)
            for peer in self._peers.values()
        ]

    def leave(self, reason: str) -> None:
        atexit.unregister(self._at_exit)
        for peer in self._peers.values():
            peer.leave(reason)

    def failed(self, reason: str) -> NoReturn:
        """End all processes after a local failure. Waits first: the cause may be the loss of
        another process, which is then reported instead."""
        time.sleep(GRACE)
        self.end_all(failure(self.rank, reason))

    def end_all(self, reason: str) -> NoReturn:
        """Kill every process of this engine, this one included. Thread-safe; the first reason is
        reported."""
        with self._ending:  # the first reason counts
            for peer in self._peers.values():
                peer.send_last(encode(Fatal(reason)))
            for observer in self.observers:
                observer(reason)
            end_process(f"process {self.rank} stops: {reason}")

    def _receive(self, rank: int, message: Message) -> None:
        if isinstance(message, Goodbye) and self._step_began is not None:
            name = self._peers[rank].name
            self.end_all(f"{name} left in the middle of a step: {message.reason}")
        self._inbox.put((rank, message))

    def _step_in_time(self) -> int:
        """Return the last step begun, for heartbeats, and enforce the step deadline."""
        began = self._step_began
        if began is not None and time.monotonic() - began > self._settings.stuck:
            behind = [peer.rank for peer in self._peers.values() if peer.step < self.step]
            who = f"{plural(behind)} {listed(behind)} did not" if behind else "all processes did"
            self.end_all(f"step {self.step} has run for {self._settings.stuck:g} s; {who} begin it")
        return self.step


class FollowerChannel:
    """A follower's end: sends to and receives from the leader."""

    def __init__(
        self,
        rank: int,
        leader: int,
        connection: Connection,
        host: str,
        settings: MultihostSettings,
    ) -> None:
        self.rank = rank
        self.leader = leader
        self.step = -1
        self._settings = settings
        self._peer = Peer(leader, connection, settings, process_name(leader, host))
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._reported = 0
        self._ending = threading.Lock()
        self._peer.start(self._receive, self.end, lambda: self.step)
        self._at_exit = not_in_forks(self.leave)
        atexit.register(self._at_exit, "its program has ended")

    def send(self, message: Message) -> None:
        self._peer.send(encode(message))

    def agree(self, report: Report, take: Callable[[Message], None]) -> Verdict:
        """Send this process's report and wait for the verdict; `take` handles other messages
        meanwhile.

        A ReportDue that asks for a report already sent is not passed to `take`.
        """
        self._reported += 1
        self.send(report)
        while not isinstance(message := self.next(), Verdict):
            if not (isinstance(message, ReportDue) and self.answers(message)):
                take(message)
        return message

    def answers(self, ask: ReportDue) -> bool:
        """Whether this report was already sent."""
        return ask.number < self._reported

    def next(self) -> Message:
        """Block for the leader's next message."""
        while True:
            try:
                message = self._inbox.get(timeout=self._settings.silence)
            except queue.Empty:
                logger.warning("waiting for process %d", self.leader)
                continue
            if isinstance(message, Goodbye):
                self._inbox.put(message)  # the last message, kept for later calls
                raise EngineDead(f"{self._peer.name} has left this engine: {message.reason}")
            return message

    def health(self) -> list[WorkerHealth]:
        return [WorkerHealth(self.leader, self._peer.name, self._peer.step, self._peer.silent)]

    def leave(self, reason: str) -> None:
        atexit.unregister(self._at_exit)
        self._peer.leave(reason)

    def failed(self, reason: str) -> NoReturn:
        """End all processes after a local failure. Waits first: the cause may be the loss of
        another process, which is then reported instead."""
        time.sleep(GRACE)
        self._peer.send(encode(Fatal(failure(self.rank, reason))))
        self.end(failure(self.rank, reason))

    def end(self, reason: str) -> NoReturn:
        with self._ending:
            end_process(f"process {self.rank} stops: {reason}")

    def _receive(self, _rank: int, message: Message) -> None:
        self._inbox.put(message)


Channel = LeaderChannel | FollowerChannel


def failure(rank: int, reason: str) -> str:
    """Error text for a failure of this process."""
    return f"{process_name(rank, socket.gethostname())} failed: {reason}"


@contextmanager
def failing_together(channel: Channel) -> Iterator[None]:
    """Any exception inside ends every process, since others may be blocked in the same step."""
    try:
        yield
    except UnexpectedCompile:
        raise  # before anything has run, in every process
    except BaseException as error:
        channel.failed(f"{type(error).__name__}: {error}")
        raise


def reports(
    subject: str, items: Sequence[tuple[str, bytes]], number: int = 0, answer: bytes = b""
) -> Report:
    names, digests = [name for name, _ in items], [value for _, value in items]
    return Report(subject, names, digests, number, answer)
