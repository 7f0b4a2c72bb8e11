"""Where the processes of a producer are asked, each for the piece of a block that it has.

In: what `kv_transfer_params` say, which may be anything. Out: the source of a request's fetches:
the address of a producer that has whole blocks, else `PIECE@ADDRESS` for every piece that this
engine's processes need, with spaces between. Must not know sockets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jengine.connectors.settings import PeerSettings
from jengine.wire.curve import tcp

AT = "@"


def said_of(own: PeerSettings, pieces: Sequence[str]) -> dict[str, Any]:
    """The entries of `kv_transfer_params` that tell consumers the address of each process.
    `pieces`: what each process stores of a block, in order."""
    said: dict[str, Any] = {"remote_host": own.host, "remote_port": own.port}
    if any(pieces):
        places: dict[str, list[Any]] = {}
        for index, piece in enumerate(pieces):
            process = own.of_process(index)
            places.setdefault(piece, [process.host, process.port])
        said["remote_pieces"] = places
    return said


def source_of(
    said: Mapping[str, Any], pieces: Sequence[str], peers: Sequence[str] = ()
) -> str | None:
    """The source string under which this engine's processes, which need these pieces, fetch from
    the producer. None if a piece is missing or an address is not among `peers` (empty: any address
    is allowed)."""
    places = said.get("remote_pieces")
    if places is None:
        places = {"": (said.get("remote_host"), said.get("remote_port"))}
    if not isinstance(places, Mapping):
        return None
    found = {piece: address(places.get(piece), peers) for piece in pieces}
    if not all(found.values()):
        return None
    if not any(pieces):
        return found[""]
    return " ".join(f"{piece}{AT}{place}" for piece, place in found.items())


def address(place: Any, peers: Sequence[str]) -> str | None:
    """Format host and port as an address; None if malformed or not among `peers`."""
    if not isinstance(place, (list, tuple)) or len(place) != 2:
        return None
    host, port = place
    if not isinstance(host, str) or not host or " " in host:
        return None
    if not isinstance(port, int) or not 0 < port < 2**16:
        return None
    return tcp(host, port) if not peers or f"{host}:{port}" in peers else None


def address_in(source: str, piece: str) -> str | None:
    """The address at which a source serves this piece."""
    if not piece:
        return source
    named = dict(one.split(AT, 1) for one in source.split(" ") if AT in one)
    return named.get(piece)
