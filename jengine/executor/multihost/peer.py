"""A connection to another process, with the threads that receive from it and send heartbeats.

In: frames, or their absence. Out: messages to a callback, and a notice when the process is lost.
Must not know what the messages are for.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from jengine.executor.multihost.messages import Fatal, Goodbye, Heartbeat, decode
from jengine.executor.multihost.settings import MultihostSettings
from jengine.wire.connection import Connection
from jengine.wire.message import BadFrame, Message, encode

Receive = Callable[[int, Message], None]
Lost = Callable[[str], None]


def process_name(rank: int, host: str | None = None) -> str:
    """Name of a process in error messages, with its host if known."""
    return f"process {rank} on {host}" if host else f"process {rank}"


class Peer:
    """Sends and receives until either side says goodbye; detects silence and broken connections."""

    def __init__(
        self, rank: int, connection: Connection, settings: MultihostSettings, name: str = ""
    ) -> None:
        self.rank = rank
        self.name = name or process_name(rank)
        self.heard = time.monotonic()
        self.step = -1  # the last step that it is known to have begun
        self.farewell: str | None = None  # why it left, once it has
        self._connection = connection
        self._settings = settings
        self._left = threading.Event()  # this side has said goodbye

    def start(self, receive: Receive, lost: Lost, own_step: Callable[[], int]) -> None:
        threads = (
            threading.Thread(target=self._listen, args=(receive, lost), daemon=True),
            threading.Thread(target=self._beat, args=(own_step,), daemon=True),
        )
        for thread in threads:
            thread.start()

    def send(self, data: bytes) -> None:
        """Send an encoded message. A broken connection is reported by the receiving thread, not
        raised."""
        if self.farewell is None and not self._left.is_set():
            try:
                self._connection.send(data)
            except OSError:
                # Only this direction: the other side's last message may say why it ended.
                self._connection.close_sending()

    def send_last(self, data: bytes) -> None:
        """Send without blocking on a send that is stuck."""
        with contextlib.suppress(OSError):  # this process ends in any case
            self._connection.send(data, if_free=True)

    def leave(self, reason: str) -> None:
        """Say goodbye. Idempotent."""
        if self._left.is_set():
            return
        self._left.set()  # before sending: the other side may close the connection on receipt
        if self.farewell is None:
            with contextlib.suppress(OSError):  # the other side left first
                self._connection.send(encode(Goodbye(reason)))
        self._connection.close_sending()

    @property
    def silent(self) -> float:
        """Seconds since its last heartbeat."""
        return time.monotonic() - self.heard

    def _listen(self, receive: Receive, lost: Lost) -> None:
        try:
            while self.farewell is None:
                message = decode(self._connection.receive())
                self.heard = time.monotonic()
                if isinstance(message, Heartbeat):
                    self.step = message.step
                elif isinstance(message, Fatal):
                    lost(message.reason)
                else:
                    if isinstance(message, Goodbye):
                        self.farewell = message.reason
                    receive(self.rank, message)
        except TimeoutError:
            self._report(lost, f"showed no sign of life for {self._settings.silence:g} s")
        except (OSError, BadFrame) as error:
            self._report(lost, f"was lost ({error})")
        finally:
            self._connection.close()

    def _report(self, lost: Lost, how: str) -> None:
        if not self._left.is_set():
            lost(f"{self.name} {how}")

    def _beat(self, own_step: Callable[[], int]) -> None:
        while not self._left.wait(self._settings.beat) and self.farewell is None:
            try:
                self._connection.send(encode(Heartbeat(own_step())), if_free=True)
            except OSError:
                return  # the receiving thread reports it
