"""One TCP connection between two processes that share a secret: whole frames in, whole frames out.

Both sides authenticate before anything else is read. Contents are not encrypted: the network
between the hosts is trusted as much as JAX's own collectives trust it.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import queue
import secrets
import socket
import struct
import threading
import time

from jengine.wire import frames
from jengine.wire.doors import Door, proof, tcp

NONCE = 32
PROOF = hashlib.sha256().digest_size
GREETING = struct.Struct(f"!i{NONCE}s{PROOF}s")
RANK = struct.Struct("!i")
# Unauthenticated connections at a time. One more drops the oldest: a caller that has the secret
# authenticates at once.
MOST_CALLERS = 64
LOOK = 0.02  # accept timeout in seconds, so that authenticated callers are noticed
STRANGER = "the other side does not know the secret"


class Connection:
    """Frames over a socket. One thread receives; any thread may send."""

    def __init__(self, sock: socket.socket, silence: float) -> None:
        """`silence`: seconds that each send and each receive may take."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._wait: frames.Wait = lambda: silence
        self._sending = threading.Lock()

    def send(self, payload: bytes, *, if_free: bool = False) -> None:
        """Send a frame; TimeoutError if the other side reads nothing for the timeout. `if_free`:
        skip if another frame is being sent (for heartbeats, which it replaces)."""
        if self._sending.acquire(blocking=not if_free):
            try:
                frames.send(self._socket, frames.MESSAGE, (payload,), self._wait)
            finally:
                self._sending.release()

    def receive(self) -> memoryview:
        """The next frame; TimeoutError after silence, ConnectionError at the end."""
        return memoryview(frames.receive(self._socket, self._wait)[1])

    def close_sending(self) -> None:
        """Close the sending half; data from the other side can still be read."""
        with contextlib.suppress(OSError):  # already closed
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()


class Listener:
    """Accepts processes that know the secret. Each caller authenticates in a separate thread, so a
    silent one delays no other."""

    def __init__(self, door: Door, silence: float) -> None:
        """Raises OSError if the address cannot be listened at."""
        host, port = door.place
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._server = socket.create_server((host, port), family=family, backlog=128)
        self._server.settimeout(LOOK)
        self.door = Door(tcp(host, self._server.getsockname()[1]), door.secret)
        self._silence = silence
        self._lock = threading.Lock()
        self._proving: dict[socket.socket, None] = {}  # oldest first
        self._known: queue.SimpleQueue[tuple[int, Connection]] = queue.SimpleQueue()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.close()
        with self._lock:
            while self._proving:
                self._turn_away_first()
        while not self._known.empty():
            self._known.get()[1].close()

    def accept(self, seconds: float) -> tuple[int, Connection]:
        """Return rank and connection of the next authenticated caller. Raises TimeoutError."""
        end = time.monotonic() + seconds
        while self._known.empty():
            if time.monotonic() >= end:  # also while other callers keep coming
                raise TimeoutError
            try:
                sock, _ = self._server.accept()
            except TimeoutError:
                continue
            with self._lock:
                if len(self._proving) >= MOST_CALLERS:
                    self._turn_away_first()
                self._proving[sock] = None
            threading.Thread(target=self._greet, args=(sock,), daemon=True).start()
        return self._known.get()

    def _turn_away_first(self) -> None:
        """Drop the caller that has been authenticating the longest, which ends its thread."""
        sock = next(iter(self._proving))
        del self._proving[sock]
        with contextlib.suppress(OSError):  # already closed
            sock.shutdown(socket.SHUT_RDWR)

    def _greet(self, sock: socket.socket) -> None:
        rank = None
        with contextlib.suppress(OSError):
            rank = greeted(sock, self.door.secret or b"", self._silence)
        with self._lock:
            is_kept = sock in self._proving
            self._proving.pop(sock, None)
            if rank is not None and is_kept:
                self._known.put((rank, Connection(sock, self._silence)))
            else:
                sock.close()


def greeted(sock: socket.socket, secret: bytes, seconds: float) -> int:
    """Authenticate both sides. Returns the caller's rank."""
    wait = frames.until(time.monotonic() + seconds)
    challenge = secrets.token_bytes(NONCE)
    sock.settimeout(wait())
    sock.sendall(challenge)
    rank, nonce, given = GREETING.unpack(frames.exactly(sock, GREETING.size, wait))
    if not hmac.compare_digest(given, prove(secret, b"follower", challenge, nonce, rank)):
        raise ConnectionError(STRANGER)
    sock.sendall(prove(secret, b"leader", nonce, challenge, rank))
    return rank


def connect(door: Door, rank: int, silence: float) -> Connection:
    """A connection to a Listener, which must know the secret too."""
    secret = door.secret or b""
    sock = socket.create_connection(door.place, timeout=silence)
    try:
        wait = frames.until(time.monotonic() + silence)
        challenge = bytes(frames.exactly(sock, NONCE, wait))
        nonce = secrets.token_bytes(NONCE)
        sock.sendall(GREETING.pack(rank, nonce, prove(secret, b"follower", challenge, nonce, rank)))
        answer = frames.exactly(sock, PROOF, wait)
        if not hmac.compare_digest(answer, prove(secret, b"leader", nonce, challenge, rank)):
            raise ConnectionError(STRANGER)
    except OSError:
        sock.close()
        raise
    return Connection(sock, silence)


def prove(secret: bytes, role: bytes, first: bytes, second: bytes, rank: int) -> bytes:
    """The response to an authentication challenge."""
    return proof(secret, role, first + second + RANK.pack(rank))
