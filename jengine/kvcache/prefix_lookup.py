"""Prefix hits: how many whole blocks of a request's tokens are cached.

In: requests that hold nothing yet. Out: hit lengths, and what a hit reads. A hit is a prefix that
all groups have. Changes nothing; must not know free units, or what requests hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from jengine.config import CacheConfig
from jengine.kvcache.contents import Contents
from jengine.kvcache.group_cache import GroupCache, IsExternal, never_external
from jengine.kvcache.token_records import TokenRecords
from jengine.request import ReadPrompt, Request, WireRequest


class PrefixLookup:
    """Looks a prompt's prefix up in every group, under one version of the weights."""

    def __init__(
        self,
        config: CacheConfig,
        groups: Sequence[GroupCache],
        records: TokenRecords | None,
        weights_version: int,
    ) -> None:
        """`records`: per-token results kept beside the cache; a hit must have these too."""
        self._enabled = config.enable_prefix_caching
        self._block_size, self._stored_as = config.block_size, config.stored_as
        self._groups, self._records = groups, records
        self._contents = Contents(config.block_size, weights_version, config.stored_as)

    @property
    def weights_version(self) -> int:
        return self._contents.weights_version

    def set_weights_version(self, version: int) -> None:
        """Find only blocks computed with these weights from now on."""
        self._contents = Contents(self._block_size, version, self._stored_as)

    def contents(self, request: Request, num_blocks: int) -> list[bytes]:
        """Hashes of the request's full known blocks, at least the first `num_blocks`."""
        return self._contents.of(request, num_blocks)

    def read(self, wire: WireRequest) -> ReadPrompt:
        """Hash a prompt for later lookups. Thread-safe."""
        return self._contents.read(wire, hashes=self._enabled)

    def find(self, request: Request, is_external: IsExternal = never_external) -> int:
        """Length in tokens of the cached prefix of a request without blocks, in whole blocks.

        Less than all known tokens: the last must run again to give logits. `is_external` tells
        which contents could be loaded from outside the device.
        """
        if not self.may_read(request):
            return 0
        blocks = (request.num_known - 1) // self._block_size
        contents = self.contents(request, blocks)
        if self._records is not None:
            blocks = self._records.longest_hit(contents, blocks)
        agreeing = 0
        for group in cycle(self._groups):  # to a fixed point: a group can only shorten the hit
            found = group.longest_hit(contents, blocks, is_external)
            agreeing = agreeing + 1 if found == blocks else 1
            blocks = found
            if agreeing == len(self._groups):
                break
        return blocks * self._block_size

    def contents_of_hit(self, request: Request, hit: int) -> list[bytes]:
        """Hashes of the blocks of a hit."""
        blocks = hit // self._block_size
        return self.contents(request, blocks)[:blocks]

    def partial_block(self, request: Request, tokens: int) -> bytes:
        """Hash of the last, possibly partial block of the first `tokens` tokens."""
        return self._contents.of_partial_block(request, tokens)

    def read_by_hit(self, request: Request, hit: int) -> list[list[bytes]]:
        """Per group, keys of the blocks that a request reads after a prefix hit of `hit` tokens."""
        contents = self.contents_of_hit(request, hit)
        return [group.read_by_hit(contents) for group in self._groups]

    def writer(self, request: Request) -> int | None:
        """Return the holder whose planned steps write more of this prefix than can be found yet, or
        None."""
        if not self.may_read(request) or not any(group.holds_back for group in self._groups):
            return None
        blocks = (request.num_known - 1) // self._block_size
        contents = self._contents.seen(request, blocks)
        writers = (group.writer(contents, blocks) for group in self._groups)
        return next((writer for writer in writers if writer is not None), None)

    def has_grown(self, request: Request, hit: int) -> bool:
        """Whether the block after the prefix hit of a request without blocks can be found now."""
        blocks = hit // self._block_size
        follows = request.block_hashes[blocks : blocks + 1]
        return any(group.longest_hit(follows, len(follows)) for group in self._groups)

    def may_read(self, request: Request) -> bool:
        """Whether a request may reuse cached blocks."""
        return self._enabled and not request.wire.skip_reading_prefix_cache
