"""Keys of sockets between hosts, which follow from a secret that both sides were given.

In: a secret. Out: sockets that encrypt (CURVE) and end when the other host falls silent. Must not
know what is sent.

A client must know the server's public key, which never travels in the clear, so who does not know
the secret is not let in; a server that does not know it cannot answer.
"""

from __future__ import annotations

import hmac
from typing import Any

import zmq
from zmq.utils import z85

from jengine.errors import ConfigError

# Milliseconds between two heartbeats, and of silence after which a connection has ended.
BEAT = 1000
SILENCE = 10_000
# Bytes of a secret; shorter ones can be guessed.
LEAST_SECRET = 16


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


def tcp(host: str, port: int) -> str:
    """The address of a socket; port 0 is any that is free."""
    return f"tcp://{f'[{host}]' if ':' in host else host}:{port or '*'}"


def as_server(socket: zmq.Socket[bytes], address: str, secret: bytes) -> None:
    """Have a socket let in only those who know the secret, wherever it is bound from now on."""
    _, private = _keys(secret, b"server")
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, private)
    _end_with_silence(socket, address)


def as_client(socket: zmq.Socket[bytes], address: str, secret: bytes) -> None:
    """Have a socket connect only to those who know the secret, from now on."""
    server, _ = _keys(secret, b"server")
    public, private = _keys(secret, b"client")
    socket.setsockopt(zmq.CURVE_SERVERKEY, server)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, private)
    _end_with_silence(socket, address)


def _keys(secret: bytes, role: bytes) -> tuple[bytes, bytes]:
    """A public and a private key, as text of Z85."""
    private = z85.encode(hmac.digest(secret, b"jengine core " + role, "sha256"))
    return zmq.curve_public(private), private


def _end_with_silence(socket: zmq.Socket[bytes], address: str) -> None:
    socket.setsockopt(zmq.IPV6, int("[" in address))
    socket.setsockopt(zmq.HEARTBEAT_IVL, BEAT)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE)
    socket.setsockopt(zmq.HEARTBEAT_TTL, SILENCE)
