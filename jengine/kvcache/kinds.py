"""The kinds of cache groups. A new kind is a class that implements GroupCache, and a line in
KINDS."""

from __future__ import annotations

from jengine.config import CacheGroup, CacheKind, CacheSpec
from jengine.kvcache.encoder_group import EncoderGroup
from jengine.kvcache.group_cache import GroupCache, KindOfGroup
from jengine.kvcache.paged_group import PagedGroup
from jengine.kvcache.recurrent_group import RecurrentGroup

KINDS: dict[CacheKind, KindOfGroup] = {
    "full": PagedGroup,
    "sliding": PagedGroup,
    "chunked": PagedGroup,
    "latent": PagedGroup,  # its blocks hold other arrays, and have the same rules
    "recurrent": RecurrentGroup,
    "whole": EncoderGroup,
}


def group_cache(index: int, group: CacheGroup, block_size: int, num_units: int) -> GroupCache:
    """The cache of one group. Unit 0 is never used."""
    return KINDS[group.spec.kind](index, group.spec, block_size, num_units)


def blocks_needed(spec: CacheSpec, num_tokens: int, block_size: int, max_chunk: int) -> int:
    """Maximum units of a group that one request of `num_tokens` holds."""
    return KINDS[spec.kind].units_needed(spec, num_tokens, block_size, max_chunk)
