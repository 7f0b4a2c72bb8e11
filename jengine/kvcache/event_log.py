"""Collects KV cache events for external subscribers until they are published.

In: keys that groups store and remove, and the requests that own them. Out: batches of events.
States of recurrent layers are left out: they correspond to no run of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from jengine.config import CacheGroup
from jengine.connectors.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from jengine.kvcache.hashing import ExtraKey, extra_keys, group_of
from jengine.request import Request, WireRequest

MEDIUM = "GPU"  # vLLM's word for the device, whatever it is
LAST = (1 << 64) - 1
# vLLM's words for the kinds of cache groups whose blocks are told of.
KINDS = {
    "full": "full_attention", "sliding": "sliding_window", "latent": "mla_attention",
    "whole": "encoder_only_attention", "chunked": "chunked_local_attention",
}  # fmt: skip
# Extra keys in vLLM's order; the adapter, which comes first, is told by name.
ORDER = ("mm", "cache_salt", "prompt_embeds", "taps")


class EventLog:
    """Pending events of all groups, in order."""

    def __init__(
        self,
        block_size: int,
        publish: Callable[[list[Event]], None],
        groups: Sequence[CacheGroup],
    ) -> None:
        self._block_size = block_size
        self._publish = publish
        self._groups = [(KINDS.get(one.spec.kind), one.spec.window) for one in groups]
        self._stored: list[bytes] = []  # keys without an event's details so far
        self._events: list[Event] = []

    def stored(self, key: bytes) -> None:
        """Record that a content became findable; `explain` names its request."""
        self._stored.append(key)

    def removed(self, key: bytes) -> None:
        """Record that a content is no longer findable."""
        self._events.append(BlockRemoved([number_of(key[:-4])], MEDIUM, group_of(key)))

    def cleared(self) -> None:
        """Record that the cache was cleared."""
        self._stored.clear()
        self._events = [AllBlocksCleared()]
        self.flush()

    def explain(self, request: Request) -> None:
        """Attribute the contents stored since the last call to this request."""
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
        """Publish the recorded events."""
        if self._events:
            events, self._events = self._events, []
            self._publish(events)

    def _event(self, request: Request, group: int, first: int, count: int) -> BlockStored:
        size, hashes, wire = self._block_size, request.block_hashes, request.wire
        kind, window = self._groups[group]
        return BlockStored(
            block_hashes=[number_of(one) for one in hashes[first : first + count]],
            parent_block_hash=number_of(hashes[first - 1]) if first else None,
            token_ids=request.token_ids[first * size : (first + count) * size].tolist(),
            block_size=size,
            lora_id=wire.adapter_number or None,
            medium=MEDIUM,
            lora_name=valid_text(wire.adapter_name) or None,
            extra_keys=[told_keys(wire, first + at, size) or None for at in range(count)],
            group_idx=group,
            kv_cache_spec_kind=kind,
            kv_cache_spec_sliding_window=window,
        )


def told_keys(wire: WireRequest, block_index: int, block_size: int) -> tuple[Any, ...]:
    """Return a block's extra keys as vLLM's events have them: the adapter's name, images with their
    offset in the block, the salt, the digest of embeddings."""
    found = extra_keys(wire, block_index, block_size)
    ordered = sorted((key for key in found if key[0] in ORDER), key=lambda key: ORDER.index(key[0]))
    adapter = (valid_text(wire.adapter_name),) if wire.adapter else ()
    return (*adapter, *map(told_key, ordered))


def told_key(key: ExtraKey) -> Any:
    """An extra key without its name, in the type that it has in vLLM's events."""
    name, value, *more = key
    if name == "mm":
        return value, int(more[0])
    return bytes.fromhex(value) if name == "prompt_embeds" else valid_text(value)


def valid_text(text: str) -> str:
    """Replace lone surrogates, which JSON may contain and msgpack cannot encode."""
    return text.encode("utf-8", "replace").decode()


def number_of(content: bytes) -> int:
    """The hash as vLLM publishes it: its last 64 bits."""
    return int.from_bytes(content, "big") & LAST
