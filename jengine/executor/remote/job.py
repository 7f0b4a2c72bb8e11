"""The job given to a worker process and its final message, as bytes, never as objects.

In: plain data. Out: bytes, and back. Must not know how they travel.
"""

from __future__ import annotations

from typing import Any

import msgspec

from jengine.errors import JengineError, error_named


class Job(msgspec.Struct, frozen=True):
    """One worker's part of an engine."""

    settings: dict[str, Any]
    rank: int
    workers: int
    coordinator: str  # of jax.distributed: host:port of the first worker
    driver: str  # address that the first worker connects to
    port: int
    secret: bytes
    multihost: dict[str, Any]


class Ended(msgspec.Struct, frozen=True):
    """How a worker ended: normally, or with a JengineError."""

    kind: str | None = None
    problem: str = ""


def ended_with(error: JengineError) -> bytes:
    """Encode an error for the driver."""
    return msgspec.msgpack.encode(Ended(type(error).__name__, str(error)))


def error_in(data: bytes) -> JengineError | None:
    """The error that a worker ended with, of the same class."""
    return error_of(msgspec.msgpack.decode(data, type=Ended))


def error_of(ended: Ended) -> JengineError | None:
    """The same of a message that was decoded."""
    if ended.kind is None:
        return None
    return error_named(ended.kind, ended.problem)
