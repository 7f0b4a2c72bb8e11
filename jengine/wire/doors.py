"""Addresses at which processes connect, with the shared secrets that authenticate them (`Door`).

In: hosts as users name them, secrets. Out: addresses, and authenticated sockets. Must not know what
is sent.

Three transports. Between cores and front ends, and for blocks and weights: ZMQ, encrypted (CURVE),
any number of peers; a peer that does not read delays no other. The server's public key is derived
from the secret and never sent, so only a client with the secret can connect, and only a server with
it can answer. Between the processes of one mesh: one TCP connection each (`wire/connection.py`)
with mutual authentication; the planning thread sends without a hand-over to another thread, and the
death of a process is noticed at once. Within a host: sockets in a directory of this user, or socket
pairs. All byte streams use the same frames (`wire/frames.py`).

A rank on another host is a core that listens on a TCP address besides its local socket. Hosts join
at the front end's address (`distributed/joining.py`) and end with it. Ranks on Ray are hosts of one
rank, in actors started by a separate process (`assembly/processes/other_ranks.py`), since Ray takes
over the signals of the process that joins it. A restarted rank takes its former place in every API
process (`assembly/processes/core_return.py`).
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket as sockets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import zmq
from zmq.utils import z85

from jengine.errors import ConfigError

# TEST-NET-3 (RFC 5737), which takes the default route. Nothing is sent to it.
FAR_AWAY = ("203.0.113.1", 9)
LOOPBACK = "127.0.0.1"
# ZMQ heartbeat interval and timeout, in ms.
BEAT = 1000
SILENCE = 10_000
# Bytes of a secret; shorter ones can be guessed.
LEAST_SECRET = 16
NEW_SECRET = 32


class Door(msgspec.Struct, frozen=True):
    """An address and its secret; None where only this user's processes can reach it."""

    address: str  # from `tcp`, or ipc:FILE
    secret: bytes | None = None

    def __repr__(self) -> str:  # secrets stay out of logs
        return f"Door({self.address!r})"

    @property
    def place(self) -> tuple[str, int]:
        """Host and port of a TCP address."""
        host, _, port = self.address.removeprefix("tcp://").rpartition(":")
        return host.strip("[]"), 0 if port == "*" else int(port)

    def bind(self, socket: zmq.Socket[bytes]) -> str:
        """Bind a socket to this address, with authentication by the secret. Returns the address
        with its actual port."""
        if self.secret is not None:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, _keys(self.secret, b"server")[1])
        self._prepare(socket)
        socket.bind(self.address)
        return socket.get_string(zmq.LAST_ENDPOINT)

    def connect(self, socket: zmq.Socket[bytes]) -> None:
        """Connect a socket; with a secret, only to a server that knows it."""
        if self.secret is not None:
            public, private = _keys(self.secret, b"client")
            socket.setsockopt(zmq.CURVE_SERVERKEY, _keys(self.secret, b"server")[0])
            socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, private)
        self._prepare(socket)
        socket.connect(self.address)

    def _prepare(self, socket: zmq.Socket[bytes]) -> None:
        socket.setsockopt(zmq.IPV6, int("[" in self.address))
        if self.secret is not None:  # detect the loss of a remote host
            socket.setsockopt(zmq.HEARTBEAT_IVL, BEAT)
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE)
            socket.setsockopt(zmq.HEARTBEAT_TTL, SILENCE)


def tcp(host: str, port: int) -> str:
    """The address of a TCP socket; port 0 is any that is free."""
    return f"tcp://{f'[{host}]' if ':' in host else host}:{port or '*'}"


@contextmanager
def listening(problem: str, advice: str) -> Iterator[None]:
    """Turn the error of an address that cannot be listened at into a ConfigError."""
    try:
        yield
    except (OSError, zmq.ZMQError) as error:
        raise ConfigError(f"{problem} ({error.strerror or error}). {advice}") from error


# --- secrets -------------------------------------------------------------------------------------


def new_secret() -> str:
    return secrets.token_hex(NEW_SECRET)


def checked_secret(name: str, secret: Any) -> bytes:
    """Validate the shared secret. `name`: the setting shown in errors."""
    if secret is not None and not isinstance(secret, str):
        raise ConfigError(f"{name}: expected a text, found {type(secret).__name__}.")
    data = (secret or "").encode()
    if len(data) < LEAST_SECRET:
        raise ConfigError(
            f"{name}: expected a secret of at least {LEAST_SECRET} bytes, the same on every host; "
            f"found {len(data)} bytes. `openssl rand -hex 32` makes one."
        )
    return data


def proof(secret: bytes, role: bytes, said: bytes) -> bytes:
    """Authentication code of a handshake's messages under the shared secret."""
    return hmac.digest(secret, role + said, "sha256")


def _keys(secret: bytes, role: bytes) -> tuple[bytes, bytes]:
    """CURVE public and private key, in Z85, derived from the secret."""
    private = z85.encode(proof(secret, b"jengine core ", role))
    return zmq.curve_public(private), private


# --- hosts ---------------------------------------------------------------------------------------


def checked_host(name: str, host: str) -> str:
    """Resolve a setting's host to one address. Wildcard and multicast addresses are refused."""
    try:
        found = sockets.getaddrinfo(host, None, type=sockets.SOCK_STREAM)[0][4][0]
    except OSError as error:
        raise ConfigError(f"{name}={host!r}: no host has this address ({error}).") from error
    address = ipaddress.ip_address(str(found).partition("%")[0])
    if not host or address.is_unspecified or address.is_multicast:
        raise ConfigError(
            f"{name}={host!r}: expected one address of one host, on the network that its engines "
            "share. All addresses at once would let every network in."
        )
    return str(address)


def own_address(host: str, port: int) -> str:
    """This host's address on the route to another one."""
    family, *_, address = sockets.getaddrinfo(host, port, type=sockets.SOCK_DGRAM)[0]
    with sockets.socket(family, sockets.SOCK_DGRAM) as probe:  # sends nothing
        probe.connect(address)
        return probe.getsockname()[0]


def outward_address(peer: str | None) -> str:
    """This host's address on the route to a peer, "host:port"; without one, on the default route;
    else the loopback address."""
    host, _, port = (peer or "").rpartition("//")[2].rpartition(":")
    given = [(host.strip("[]"), int(port))] if host and port.isdecimal() else []
    for other in (*given, FAR_AWAY):
        with suppress(OSError):
            return own_address(*other)
    return LOOPBACK
