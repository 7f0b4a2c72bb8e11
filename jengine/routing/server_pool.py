"""Interchangeable servers: health, load, and recently read prompts.

In: prompt texts. Out: the server for the next prompt, by `distributed.router`'s rule: longest
recently read prefix, unless its load exceeds the least by more than the prefix saves.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

from jengine.client.address import Address
from jengine.client.connection import Connections, security_of
from jengine.distributed.router import choose

# Bytes of prompt per prefix hash.
PIECE = 256
# Prefix hashes remembered per server.
MOST_PIECES = 100_000


def pieces_of(body: dict[str, Any]) -> list[bytes]:
    """Rolling hashes of a request's prompt, one per prefix: equal prefixes have equal hashes."""
    said = body.get("messages", body.get("prompt", ""))
    text = json.dumps([body.get("model"), body.get("cache_salt"), said], sort_keys=True).encode()
    found, before = [], b""
    for begin in range(0, len(text) - PIECE + 1, PIECE):
        before = sha256(before + text[begin : begin + PIECE]).digest()
        found.append(before)
    return found


class Backend:
    """One server: its load, its recent prompts and whether it is up."""

    def __init__(self, url: str, *, is_up: bool = True) -> None:
        self.address = Address.of(url)
        self.connections = Connections(self.address, security_of(self.address))
        self.is_up = is_up
        self.leaves = False  # draining
        self.load = 0  # prefix hashes of open requests
        self.num_open = 0
        self._read: OrderedDict[bytes, None] = OrderedDict()

    def hit(self, pieces: Sequence[bytes]) -> int:
        """Length, in pieces, of the longest prefix that this server has read recently."""
        return next((i for i, one in enumerate(pieces) if one not in self._read), len(pieces))

    @contextmanager
    def reading(self, pieces: Sequence[bytes]) -> Iterator[None]:
        """Count a request as load while it is answered, and remember its prompt."""
        for one in pieces:
            self._read[one] = None
            self._read.move_to_end(one)
        while len(self._read) > MOST_PIECES:
            self._read.popitem(last=False)
        self.load += 1 + len(pieces)
        self.num_open += 1
        try:
            yield
        finally:
            self.load -= 1 + len(pieces)
            self.num_open -= 1
            self._end()

    def leave(self) -> None:
        """Send no more requests here; close connections when the last request has ended."""
        self.leaves = True
        self._end()

    def _end(self) -> None:
        if self.leaves and not self.num_open:
            self.connections.close()


class ServerPool:
    """Interchangeable servers."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.backends = [Backend(url) for url in urls]
        self._leaving: list[Backend] = []

    @property
    def leaving(self) -> list[Backend]:
        """Removed servers that still answer requests."""
        self._leaving = [one for one in self._leaving if one.num_open]
        return self._leaving

    def add(self, url: str) -> Backend:
        """Add a server, or keep it as it is. Until its first successful health check it gets
        requests only if no other server is up."""
        found = self._named(url)
        if found is None:
            found = Backend(url, is_up=False)
            self.backends.append(found)
        return found

    def remove(self, url: str) -> Backend | None:
        """Remove a server; None if unknown."""
        found = self._named(url)
        if found is not None:
            self.backends.remove(found)
            self._leaving.append(found)
            found.leave()
        return found

    def _named(self, url: str) -> Backend | None:
        address = Address.of(url)
        return next((one for one in self.backends if one.address == address), None)

    def best(self, pieces: Sequence[bytes], tried: Sequence[Backend] = ()) -> Backend | None:
        """The best server for a prompt; None if all were tried. Servers that are down come last."""
        left = [one for one in self.backends if one not in tried]
        among = [one for one in left if one.is_up] or left
        if not among:
            return None
        hits = [one.hit(pieces) for one in among]
        return among[choose([one.load for one in among], hits)]
