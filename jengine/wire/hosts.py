"""Addresses at which fronts and cores of different hosts find each other.

In: hosts as users name them. Out: an address of this host, or a door. Must not know what is sent.

A rank on another host is a core with a door: beside its local socket it listens on one TCP address,
with keys that follow from a shared secret (`wire/curve.py`). Hosts join at the front's address
(`distributed/joining.py`) and end when the front has gone. Ranks on Ray are such hosts of one rank,
in actors that a process beside the front starts (`assembly/processes/other_ranks.py`): Ray takes
over the signals of the process that joins it. One that comes back takes its former place, in every
API process (`assembly/processes/core_return.py`).
"""

from __future__ import annotations

import ipaddress
import socket as sockets
from contextlib import suppress

import msgspec

from jengine.errors import ConfigError

# An address for examples, which routes as any does that is not of a local network.
FAR_AWAY = ("203.0.113.1", 9)
LOOPBACK = "127.0.0.1"


class Door(msgspec.Struct, frozen=True):
    """An additional TCP address at which processes of other hosts connect."""

    host: str  # an address of this host
    secret: bytes
    port: int = 0  # 0: any that is free

    def __repr__(self) -> str:  # secrets stay out of logs
        return f"Door(host={self.host!r}, port={self.port})"


def checked_host(name: str, host: str) -> str:
    """One address of one host; `name` is the setting's. All addresses at once are refused."""
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
    """The address of this host from which another one is reached."""
    family, *_, address = sockets.getaddrinfo(host, port, type=sockets.SOCK_DGRAM)[0]
    with sockets.socket(family, sockets.SOCK_DGRAM) as probe:  # sends nothing
        probe.connect(address)
        return probe.getsockname()[0]


def outward_address(peer: str | None) -> str:
    """The address of this host from which a peer, "host:port", is reached; without one that of the
    default route, or of this host alone."""
    host, _, port = (peer or "").rpartition("//")[2].rpartition(":")
    given = [(host.strip("[]"), int(port))] if host and port.isdecimal() else []
    for other in (*given, FAR_AWAY):
        with suppress(OSError):
            return own_address(*other)
    return LOOPBACK
