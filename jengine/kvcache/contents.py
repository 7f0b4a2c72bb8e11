"""Block hashes of requests, computed once and kept with the request.

In: requests. Out: their block hashes under the weights in use. Must not know pools or groups.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from typing import Any

from jengine.kvcache.hashing import block_hash, block_hashes, extra_keys, root_hash
from jengine.request import ReadPrompt, Request, WireRequest

HASH_BYTES = 32
# Blocks hashed between pauses: a fraction of a millisecond, so that the step thread never waits
# longer for the GIL.
AT_ONCE = 256
# Pause, in seconds, in which other threads get the GIL.
PAUSE = 1e-6


class JoinedHashes(Sequence[bytes]):
    """A sequence of hashes stored as one bytes object, which takes half the memory."""

    def __init__(self, joined: bytes) -> None:
        self._joined = joined

    def __len__(self) -> int:
        return len(self._joined) // HASH_BYTES

    def __getitem__(self, index: Any) -> Any:
        joined, size = self._joined, HASH_BYTES
        if isinstance(index, slice):
            places = range(*index.indices(len(self)))
            return [joined[place * size : (place + 1) * size] for place in places]
        return joined[index * size : (index + 1) * size]


class Contents:
    """Computes block hashes for one version of the weights and one cache dtype."""

    def __init__(self, block_size: int, weights_version: int, stored_as: str) -> None:
        self.weights_version = weights_version
        self._block_size = block_size
        self._root = root_hash(weights_version, stored_as)

    def of(self, request: Request, num_blocks: int) -> list[bytes]:
        """Hashes of a request's full known blocks, at least the first `num_blocks`."""
        hashes = request.block_hashes
        if request.weights_version != self.weights_version:
            assert not request.capacity, "hashes of two weights would mix"
            hashes.clear()
            request.joined_hashes = b""
            request.weights_version = self.weights_version
        if request.joined_hashes:
            hashes[:] = JoinedHashes(request.joined_hashes)[:]
            request.joined_hashes = b""
        done, size = len(hashes), self._block_size
        if done < num_blocks:
            tokens = request.token_ids[done * size : num_blocks * size]
            hashes += self._behind(hashes, request.wire, tokens)
        return hashes

    def seen(self, request: Request, num_blocks: int) -> Sequence[bytes]:
        """As `of`, but joined hashes are not expanded: for callers that read few of them."""
        joined = JoinedHashes(request.joined_hashes)
        is_known = request.weights_version == self.weights_version and len(joined) >= num_blocks
        return joined if is_known else self.of(request, num_blocks)

    def read(self, wire: WireRequest, *, hashes: bool) -> ReadPrompt:
        """Hash a prompt's full blocks. Thread-safe; releases the GIL now and then."""
        size, tokens, found = self._block_size, array("i"), list[bytes]()
        for start in range(0, len(wire.prompt_token_ids), AT_ONCE * size):
            if start:
                time.sleep(PAUSE)
            some = wire.prompt_token_ids[start : start + AT_ONCE * size]
            tokens.extend(some)
            if hashes:
                found += self._behind(found, wire, some[: len(some) // size * size])
        # A copy has no room to grow: it takes a twentieth less while it waits.
        return ReadPrompt(tokens[:], self.weights_version, b"".join(found))

    def _behind(
        self, hashes: Sequence[bytes], wire: WireRequest, tokens: Sequence[int]
    ) -> list[bytes]:
        """Hashes of the full blocks of `tokens`, chained to the last of `hashes`."""
        size, first = self._block_size, len(hashes)
        keys = [extra_keys(wire, first + index, size) for index in range(len(tokens) // size)]
        return block_hashes(hashes[-1] if hashes else self._root, tokens, size, keys)

    def of_partial_block(self, request: Request, num_tokens: int) -> bytes:
        """Hash of the block, full or partial, that ends at `num_tokens`."""
        size = self._block_size
        index = (num_tokens - 1) // size
        hashes = self.of(request, index)
        parent = hashes[index - 1] if index else self._root
        tokens = request.token_ids[index * size : num_tokens]
        return block_hash(parent, tokens, extra_keys(request.wire, index, size))
