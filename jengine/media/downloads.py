"""HTTP download within one deadline for lookup, connection, TLS, head and body.

In: a URL's parts, and ways to resolve and connect. Out: bytes, or an error.
"""

from __future__ import annotations

import http.client
import math
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, TypeVar

from jengine.confined import errand as errands
from jengine.errors import CapacityError

SECONDS = 10.0
MOST_LOOKUPS = 16  # at once; a lookup cannot be cancelled
T = TypeVar("T")
Resolve = Callable[[str, int], Sequence[str]]
Connect = Callable[[str, int, float], socket.socket]


def resolved(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def connected(address: str, port: int, seconds: float) -> socket.socket:
    return socket.create_connection((address, port), seconds)


class Deadline:
    """Deadline of a download, no later than its request's."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._errand = errands.current.get() or errands.Errand(math.inf)
        self._until = time.monotonic() + min(seconds, self._errand.left)

    @property
    def left(self) -> float:
        """Seconds left. Raises TimeoutError."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    @contextmanager
    def closing(self, sock: socket.socket) -> Iterator[None]:
        """Shut the socket down at the deadline or when the request is abandoned; raises
        TimeoutError or GivenUp."""
        sock.settimeout(self.left)
        timer = threading.Timer(self.left, self._end, (sock,))
        timer.daemon = True
        timer.start()
        try:
            with self._errand.run_by(lambda: end(sock)):
                yield
            self._check()  # a truncated body without a length looks complete
        except (OSError, http.client.HTTPException):
            self._check()
            raise
        finally:
            timer.cancel()

    def _check(self) -> None:
        """Raise GivenUp or TimeoutError if it is over."""
        self._errand.check()
        _ = self.left

    def _end(self, sock: socket.socket) -> None:
        self._until = time.monotonic()
        end(sock)


def end(sock: socket.socket) -> None:
    """Shut down a socket under other users of it; the TLS layer's own shutdown would send a close
    first."""
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


class Lookups:
    """DNS lookups in threads that callers need not wait for."""

    def __init__(self) -> None:
        self._places = threading.BoundedSemaphore(MOST_LOOKUPS)

    def addresses(
        self, resolve: Resolve, host: str, port: int, deadline: Deadline
    ) -> Sequence[str]:
        """Resolve a host. Raises CapacityError if too many lookups run, TimeoutError at the
        deadline."""
        if not self._places.acquire(blocking=False):
            raise CapacityError(f"{MOST_LOOKUPS} names of hosts are being looked up. Try again.")
        found: list[Sequence[str] | OSError] = []
        done = threading.Event()

        def look_up() -> None:
            try:
                found.append(resolve(host, port))
            except OSError as error:
                found.append(error)
            finally:
                self._places.release()
                done.set()

        threading.Thread(target=look_up, name="jengine-lookup", daemon=True).start()
        if not done.wait(deadline.left):
            raise TimeoutError
        if not found or isinstance(found[0], OSError):
            return ()
        return found[0]


class DownloadTarget(NamedTuple):
    """A resolved download."""

    host: str
    port: int
    address: str
    path: str
    is_secure: bool


def download(
    target: DownloadTarget, connect: Connect, most: int, deadline: Deadline
) -> tuple[int, bytes]:
    """Return (status, body); the body is cut to `most` + 1 bytes."""
    connection = http.client.HTTPConnection(target.host, target.port)
    try:
        plain = connect(target.address, target.port, deadline.left)
        connection.sock = plain
        if target.is_secure:
            context = ssl.create_default_context()
            connection.sock = context.wrap_socket(
                plain, server_hostname=target.host, do_handshake_on_connect=False
            )
        with deadline.closing(connection.sock):
            if isinstance(connection.sock, ssl.SSLSocket):
                connection.sock.do_handshake()
            connection.request("GET", target.path, headers={"Accept": "image/*"})
            response = connection.getresponse()
            return response.status, response.read(most + 1) if response.status == 200 else b""
    finally:
        connection.close()
