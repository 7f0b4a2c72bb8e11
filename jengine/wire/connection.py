"""One TCP connection between two processes that share a secret: whole frames in, whole frames out.

Both sides prove that they know the secret before anything else is read. Contents are not encrypted:
the network between the hosts is trusted as far as JAX's own collectives trust it.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import socket
import struct
import threading

HEADER = struct.Struct("!Q")
# Prompt log-probabilities of a long prompt over a whole vocabulary are below this.
LARGEST_FRAME = 2**34
NONCE = 32
PROOF = hashlib.sha256().digest_size
GREETING = struct.Struct(f"!i{NONCE}s{PROOF}s")
READ_AT_ONCE = 2**20


class Connection:
    """Frames over a socket. One thread receives; any thread may send."""

    def __init__(self, sock: socket.socket, silence: float) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(silence)  # of each send and each receive
        self._socket = sock
        self._sending = threading.Lock()

    def send(self, payload: bytes) -> None:
        """Send a frame; TimeoutError if the other side reads nothing for the timeout."""
        with self._sending:
            self._socket.sendall(HEADER.pack(len(payload)) + payload)

    def send_if_free(self, payload: bytes) -> None:
        """Send a frame unless another is being sent, which proves life just as well."""
        if self._sending.acquire(blocking=False):
            try:
                self._socket.sendall(HEADER.pack(len(payload)) + payload)
            finally:
                self._sending.release()

    def receive(self) -> bytes:
        """The next frame; TimeoutError after silence, ConnectionError at the end."""
        (size,) = HEADER.unpack(read_exactly(self._socket, HEADER.size))
        if size > LARGEST_FRAME:
            raise ConnectionError(f"a frame of {size} bytes; is this another program?")
        return read_exactly(self._socket, size)

    def close_sending(self) -> None:
        """Close the sending half; what the other side sent can still be read."""
        with contextlib.suppress(OSError):  # the other side closed first
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def read_exactly(sock: socket.socket, size: int) -> bytes:
    """Exactly `size` bytes, or ConnectionError."""
    data = bytearray()
    while len(data) < size:
        part = sock.recv(min(size - len(data), READ_AT_ONCE))
        if not part:
            raise ConnectionError("the connection was closed")
        data += part
    return bytes(data)


def listen(address: str) -> socket.socket:
    """A listening socket on one address of this host, on a port that is free."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, 0), family=family, backlog=128)


def accept(server: socket.socket, secret: bytes, silence: float) -> tuple[int, Connection] | None:
    """Accept the next process that knows the secret: (its rank, connection); None for other
    callers."""
    sock, _ = server.accept()
    sock.settimeout(silence)
    try:
        challenge = secrets.token_bytes(NONCE)
        sock.sendall(challenge)
        rank, nonce, proof = GREETING.unpack(read_exactly(sock, GREETING.size))
        if not hmac.compare_digest(proof, prove(secret, b"follower", challenge, nonce, rank)):
            raise ConnectionError("the other side does not know the secret")
        sock.sendall(prove(secret, b"leader", nonce, challenge, rank))
    except OSError:
        sock.close()
        return None
    return rank, Connection(sock, silence)


def connect(address: tuple[str, int], rank: int, secret: bytes, silence: float) -> Connection:
    """A connection to the leader, which must know the secret too."""
    sock = socket.create_connection(address, timeout=silence)
    try:
        challenge = read_exactly(sock, NONCE)
        nonce = secrets.token_bytes(NONCE)
        proof = prove(secret, b"follower", challenge, nonce, rank)
        sock.sendall(GREETING.pack(rank, nonce, proof))
        answer = read_exactly(sock, PROOF)
        if not hmac.compare_digest(answer, prove(secret, b"leader", nonce, challenge, rank)):
            raise ConnectionError("the other side does not know the secret")
    except OSError:
        sock.close()
        raise
    return Connection(sock, silence)


def prove(secret: bytes, role: bytes, first: bytes, second: bytes, rank: int) -> bytes:
    """The answer to a challenge that proves knowledge of the secret."""
    return hmac.digest(secret, role + first + second + struct.pack("!i", rank), "sha256")
