"""Digests of requests and parameters, which leader and followers compare."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from jengine.executor.multihost.agreement import digest_of
from jengine.request import WireRequest


class ParameterNotes(Protocol):
    """Notes of the parameters that this process was given last."""

    def take(self) -> list[tuple[str, bytes]]:
        """Each parameter's name and digest; begins anew."""
        ...


def digests_of(wires: Iterable[WireRequest]) -> list[tuple[str, bytes]]:
    """A digest of each request as its user made it, in order."""
    return [(f"request {i + 1}", digest_of(encoded(wire))) for i, wire in enumerate(wires)]


def encoded(wire: WireRequest) -> bytes:
    """The request as bytes, without what the leader alone decides: its name, its time, its seed
    unless that is the user's. A process that refused a request has numbered and drawn less."""
    sampling = wire.sampling
    if wire.drawn_seed:
        sampling = msgspec.structs.replace(sampling, seed=0)
    return msgspec.msgpack.encode(
        msgspec.structs.replace(wire, request_id="", arrival=0.0, sampling=sampling)
    )
