"""Prefix hits: how many whole blocks of a request's tokens are cached.

In: requests that hold nothing yet. Out: hit lengths, and what a hit reads. A hit is a prefix that
all groups have. Changes nothing; must not know free units, or what requests hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import NamedTuple

from jengine.config import CacheConfig
from jengine.kvcache.contents import Contents
from jengine.kvcache.group_cache import GroupCache, IsExternal, never_external
from jengine.kvcache.token_records import TokenRecords
from jengine.request import Request


class PrefixHit(NamedTuple):
    """What a lookup has found, for callers that need not look the same request up at every step."""

    request: Request
    num_known: int
    weights_version: int
    tokens: int


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
        self.contents = Contents(config.block_size, weights_version, config.stored_as)

    def set_weights_version(self, version: int) -> None:
        """Find only blocks computed with these weights from now on."""
        # A new object: another thread may be reading a prompt with the former one.
        self.contents = Contents(self._block_size, version, self._stored_as)

    def find(self, request: Request, is_external: IsExternal = never_external) -> int:
        """Length in tokens of the cached prefix of a request without blocks, in whole blocks.

        Less than all known tokens: the last must run again to give logits. `is_external` tells
        which contents could be loaded from outside the device.
        """
        if not self.may_read(request):
            return 0
        blocks = (request.num_known - 1) // self._block_size
        contents = self.contents.of(request, blocks)
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
        return self.contents.of(request, blocks)[:blocks]

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
        contents = self.contents.seen(request, blocks)
        writers = (group.writer(contents, blocks) for group in self._groups)
        return next((writer for writer in writers if writer is not None), None)

    def note(self, request: Request, tokens: int) -> PrefixHit:
        """A hit of a request without blocks, for `finds_again`."""
        return PrefixHit(request, request.num_known, self.contents.weights_version, tokens)

    def finds_again(self, hit: PrefixHit, request: Request) -> bool:
        """Whether a lookup of this request would find what it has found: it is the same one, and
        the block after its hit is still not cached."""
        if hit[:3] != self.note(request, 0)[:3]:
            return False
        blocks = hit.tokens // self._block_size
        follows = request.block_hashes[blocks : blocks + 1]
        return not any(group.longest_hit(follows, len(follows)) for group in self._groups)

    def may_read(self, request: Request) -> bool:
        """Whether a request may reuse cached blocks."""
        return self._enabled and not request.wire.skip_reading_prefix_cache
