"""The contents of requests' blocks, as hashes that are made once and kept with the request.

In: requests. Out: their block hashes under the weights in use. Must not know pools or groups.
"""

from __future__ import annotations

from jengine.kvcache.hashing import block_hash, extra_keys, root_hash
from jengine.request import Request


class Contents:
    """Block hashes under one version of the weights, in caches that store values alike."""

    def __init__(self, block_size: int, weights_version: int, stored_as: str) -> None:
        self.weights_version = weights_version
        self._block_size = block_size
        self._root = root_hash(weights_version, stored_as)

    def of(self, request: Request, num_blocks: int) -> list[bytes]:
        """The hashes of a request's known blocks, at least the first `num_blocks`."""
        hashes = request.block_hashes
        if request.weights_version != self.weights_version:
            assert not request.capacity, "hashes of two weights would mix"
            hashes.clear()
            request.weights_version = self.weights_version
        size = self._block_size
        for index in range(len(hashes), num_blocks):
            parent = hashes[-1] if hashes else self._root
            tokens = request.token_ids[index * size : (index + 1) * size]
            hashes.append(block_hash(parent, tokens, extra_keys(request.wire, index, size)))
        return hashes

    def of_tail(self, request: Request, num_tokens: int) -> bytes:
        """The hash of the last block of a request's first tokens, which need not be full."""
        size = self._block_size
        index = (num_tokens - 1) // size
        hashes = self.of(request, index)
        parent = hashes[index - 1] if index else self._root
        tokens = request.token_ids[index * size : num_tokens]
        return block_hash(parent, tokens, extra_keys(request.wire, index, size))
