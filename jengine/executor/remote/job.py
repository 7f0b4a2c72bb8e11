"""The job given to a worker process and the worker's final message, as plain encoded data.

In: plain data. Out: bytes, and back. Must not know how they travel.
"""

from __future__ import annotations

from typing import Any

import msgspec

from jengine.errors import JengineError, error_named
from jengine.wire.doors import Door


class Job(msgspec.Struct, frozen=True):
    """One worker's share of an engine."""

    settings: dict[str, Any]
    rank: int
    workers: int
    coordinator: str  # of jax.distributed: host:port of the first worker
    driver: Door  # to which the first worker connects
    multihost: dict[str, Any]


class Ended(msgspec.Struct, frozen=True):
    """How a worker ended: normally, or with a JengineError."""

    kind: str | None = None
    problem: str = ""


def ended_with(error: JengineError) -> bytes:
    return msgspec.msgpack.encode(Ended(type(error).__name__, str(error)))


def error_in(data: bytes) -> JengineError | None:
    """Decode the error that a worker ended with, as the same exception class."""
    return error_of(msgspec.msgpack.decode(data, type=Ended))


def error_of(ended: Ended) -> JengineError | None:
    """Rebuild the exception from a decoded message."""
    if ended.kind is None:
        return None
    return error_named(ended.kind, ended.problem)
