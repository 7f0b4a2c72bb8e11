"""Partial last blocks of ended requests, from copies of which forks start.

In: requests that fork, as they end and begin. Out: the token at which a fork can start, and the
contents that it copies. A fork extends another request's tokens by one, so with the copy it runs
only that one; a prefix hit would end at the last full block, or the last snapshot of recurrent
layers. Must not know blocks, or how they are copied.
"""

from __future__ import annotations

from collections.abc import Sequence

from jengine.kvcache.group_cache import GroupCache
from jengine.kvcache.prefix_lookup import PrefixLookup
from jengine.request import Request

# Maximum share of the smallest group. They are read by the next step of a search or never, and
# would evict prefixes that others read.
SHARE = 1 / 2


class PartialBlocks:
    """Findable partial blocks, oldest first. Groups store them like full blocks."""

    def __init__(
        self, groups: Sequence[GroupCache], prefixes: PrefixLookup, block_size: int
    ) -> None:
        self._groups, self._prefixes = groups, prefixes
        self._block_size = block_size
        self._kept: dict[bytes, None] = {}

    def begins_at(self, request: Request, hit: int) -> int:
        """Tokens that a request need not compute: those of its prefix hit, or more by a
        partial block."""
        tokens = request.num_known - 1
        if not request.wire.forks or hit >= tokens or not self._prefixes.may_read(request):
            return hit
        before, partial = self._parts(request, tokens)
        has_partial_block = partial in self._kept and all(
            group.has_partial_block(before, partial) for group in self._groups
        )
        return tokens if has_partial_block else hit

    def parts_of_hit(self, request: Request, hit: int) -> tuple[list[bytes], bytes]:
        """Contents of the full blocks that a request with this hit shares, and of the partial block
        it copies (empty: none)."""
        if self._is_by_partial_block(request, hit):
            return self._parts(request, hit)
        return self._prefixes.contents_of_hit(request, hit), b""

    def keep(self, request: Request, holder: int) -> None:
        """Publish a request's computed tokens up to its partial block. No step in flight may extend
        that."""
        before, partial = self._parts(request, request.num_computed)
        for group in self._groups:
            group.publish_partial_block(holder, before, partial)
        self._kept.pop(partial, None)
        self._kept[partial] = None
        most = max(1, int(min(group.num_units for group in self._groups) * SHARE))
        while len(self._kept) > most:
            self._forget(next(iter(self._kept)))

    def forget_all(self) -> None:
        """Make every partial block unfindable."""
        for partial in list(self._kept):
            self._forget(partial)

    def _is_by_partial_block(self, request: Request, hit: int) -> bool:
        """Whether the hit is a partial block. A full prefix hit ends with a full block, as a
        partial one may too."""
        if hit % self._block_size:
            return True
        is_whole = request.wire.forks and hit == request.num_known - 1
        return is_whole and self._prefixes.find(request) < hit

    def _parts(self, request: Request, tokens: int) -> tuple[list[bytes], bytes]:
        """Contents of the blocks of the first `tokens` tokens: the full ones, and the last (full or
        partial)."""
        partial = self._prefixes.contents.of_partial_block(request, tokens)
        return self._prefixes.contents_of_hit(request, tokens - 1), partial

    def _forget(self, partial: bytes) -> None:
        del self._kept[partial]
        for group in self._groups:
            group.forget_partial_block(partial)
