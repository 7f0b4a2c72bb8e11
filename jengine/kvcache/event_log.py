"""What has happened to the blocks of a cache since it was last told, as events for others.

In: keys that groups store and remove, and the requests whose blocks they are. Out: batches of
events. Blocks of recurrent layers, which stand for no run of tokens, are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from jengine.connectors.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from jengine.kvcache.hashing import extra_keys, group_of
from jengine.request import Request

MEDIUM = "GPU"  # vLLM's word for the device, whatever it is
LAST = (1 << 64) - 1


class EventLog:
    """The events of all groups, in their order."""

    def __init__(self, block_size: int, publish: Callable[[list[Event]], None]) -> None:
        self._block_size = block_size
        self._publish = publish
        self._stored: list[bytes] = []  # keys that nobody has explained yet
        self._events: list[Event] = []

    def stored(self, key: bytes) -> None:
        """A content can be found; `explain` says whose it is."""
        self._stored.append(key)

    def removed(self, key: bytes) -> None:
        """A content cannot be found any more."""
        self._events.append(BlockRemoved([number_of(key[:-4])], MEDIUM, group_of(key)))

    def cleared(self) -> None:
        """No content can be found any more."""
        self._stored.clear()
        self._events = [AllBlocksCleared()]
        self.flush()

    def explain(self, request: Request) -> None:
        """What was stored since the last call are blocks of this request."""
        stored, self._stored = self._stored, []
        if not stored:
            return
        hashes = request.block_hashes
        wanted = {key[:-4] for key in stored}
        places = dict[bytes, int]()
        for index in range(len(hashes) - 1, -1, -1):  # new ones are among the last
            if len(places) == len(wanted):
                break
            if hashes[index] in wanted:
                places[hashes[index]] = index
        found = sorted((group_of(key), places[key[:-4]]) for key in stored if key[:-4] in places)
        for (group, _), run in groupby(
            enumerate(found), lambda item: (item[1][0], item[1][1] - item[0])
        ):
            indices = [place for _, (_, place) in run]
            self._events.append(self._event(request, group, indices[0], len(indices)))

    def flush(self) -> None:
        """Publish what has happened."""
        if self._events:
            events, self._events = self._events, []
            self._publish(events)

    def _event(self, request: Request, group: int, first: int, count: int) -> BlockStored:
        size, hashes = self._block_size, request.block_hashes
        keys = [extra_keys(request.wire, first + at, size) for at in range(count)]
        return BlockStored(
            [number_of(one) for one in hashes[first : first + count]],
            number_of(hashes[first - 1]) if first else None,
            request.token_ids[first * size : (first + count) * size],
            size,
            None,
            MEDIUM,
            request.wire.adapter or None,
            [tuple(value for _, value, *_ in own) or None for own in keys],
            group,
        )


def number_of(content: bytes) -> int:
    """The hash as vLLM publishes it: its last 64 bits."""
    return int.from_bytes(content, "big") & LAST
