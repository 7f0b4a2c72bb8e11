"""Digests of requests, compared between leader and followers."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from jengine.executor.multihost.agreement import digest_of
from jengine.request import WireRequest


def digests_of(wires: Iterable[WireRequest]) -> list[tuple[str, bytes]]:
    """Digest per request, in order, of its user-visible content."""
    return [(f"request {i + 1}", digest_of(encoded(wire))) for i, wire in enumerate(wires)]


def encoded(wire: WireRequest) -> bytes:
    """Encode a request without what the leader assigns: id, arrival time, and a seed that the user
    did not set. These differ between processes if only one of them has refused an earlier
    request."""
    sampling = wire.sampling
    if wire.drawn_seed:
        sampling = msgspec.structs.replace(sampling, seed=0)
    return msgspec.msgpack.encode(
        msgspec.structs.replace(wire, request_id="", arrival=0.0, sampling=sampling)
    )
