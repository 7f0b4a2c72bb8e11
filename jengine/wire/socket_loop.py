"""One thread that owns a ZeroMQ socket: receives messages, and sends what other threads queue.

In: multipart messages, from any thread. Out: received messages, to a callback. Only this thread
uses the socket, so neither steps nor event loops block on it. Must not know the contents.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import zmq
from zmq.utils.monitor import recv_monitor_message

from jengine.wire.doors import Door

Parts = list[bytes]
# Messages read before queued ones are sent.
TURN = 1000
# ZMQ linger of a closed socket, in ms.
LINGER = 500
# Send high-water mark per front end; one that falls this far behind counts as gone.
MOST_UNREAD = 100_000


class SocketLoop:
    """Sends and receives on one socket until `close`."""

    def __init__(
        self,
        kind: int,
        *doors: Door,
        receive: Callable[[Parts], None],
        failed: Callable[[BaseException], None],
        unreachable: Callable[[bytes], None] | None = None,
        lost: Callable[[], None] | None = None,
    ) -> None:
        """A ROUTER binds to all doors, those with a secret last; any other kind connects to its
        only one.

        Callbacks: `unreachable` (identity of a peer to which a send failed), `lost` (the other end
        has closed the connection), `failed` (this thread failed).
        """
        self._receive = receive
        self._failed = failed
        self._unreachable = unreachable
        self._lost = lost
        self._outgoing: deque[Parts] = deque()
        self._closing = False
        self._awake = False  # a byte is in the pipe, or about to be read
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        self._context = zmq.Context()
        self._socket = self._context.socket(kind)
        self._socket.setsockopt(zmq.LINGER, LINGER)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.SNDHWM, MOST_UNREAD)
        self._monitor = None
        if lost is not None:
            self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.addresses: list[str] = []  # bound addresses of a ROUTER, with actual ports
        if kind == zmq.ROUTER:
            self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            self.addresses += [one.bind(self._socket) for one in doors]
        else:
            (door,) = doors
            door.connect(self._socket)
        self._thread = threading.Thread(target=self._run, name="jengine-socket", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, parts: Parts) -> None:
        """Queue a message. Lock-free, since a finalizer may call it in the middle of another
        `send`."""
        self._outgoing.append(parts)
        self._wake()

    def close(self, seconds: float = 2.0) -> None:
        """Send what is queued, within this time, and close the socket. Idempotent."""
        self._closing = True
        self._wake()
        if threading.current_thread() is not self._thread and self._thread.ident is not None:
            self._thread.join(seconds)

    def __del__(self) -> None:
        # Not in `close`: a concurrent `_wake` could write to a reused file descriptor.
        os.close(self._read_end)
        os.close(self._write_end)

    def _wake(self) -> None:
        if not self._awake:
            self._awake = True
            with suppress(OSError):  # the pipe is full, or the loop has ended
                os.write(self._write_end, b"\0")

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as error:  # noqa: BLE001 - its owner decides
            self._failed(error)
        finally:
            if self._monitor is not None:
                self._socket.disable_monitor()
                self._monitor.close()
            self._socket.close()
            self._context.term()

    def _loop(self) -> None:
        poller = zmq.Poller()
        poller.register(self._read_end, zmq.POLLIN)
        poller.register(self._socket, zmq.POLLIN)
        if self._monitor is not None:
            poller.register(self._monitor, zmq.POLLIN)
        while True:
            events = dict(poller.poll())
            if self._read_end in events:
                os.read(self._read_end, 4096)
                self._awake = False  # before sending, so that later messages wake it again
            if self._socket in events:
                self._read_some()
            closing = self._closing
            self._send_all()
            if closing:
                return
            if self._monitor in events:
                self._note_loss()

    def _read_some(self) -> None:
        for _ in range(TURN):
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._receive(parts)

    def _send_all(self) -> None:
        while self._outgoing:
            parts = self._outgoing.popleft()
            try:
                self._socket.send_multipart(parts, zmq.NOBLOCK, copy=True)
            except zmq.ZMQError as error:
                if self._unreachable is None or error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                    raise
                self._unreachable(parts[0])

    def _note_loss(self) -> None:
        assert self._monitor is not None and self._lost is not None
        self._read_some()  # messages sent before the disconnect
        while self._monitor.poll(0):
            recv_monitor_message(self._monitor, zmq.NOBLOCK)
            self._lost()
