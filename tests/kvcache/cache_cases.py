"""Small caches and requests for the tests of this folder."""

from __future__ import annotations

from typing import Any

from jengine.config import CacheConfig, CacheGroup, CacheSpec
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.plan import RowSampling
from jengine.request import Request, WireRequest

FULL = CacheGroup(CacheSpec("full", 1, 8), (0,))


def chunked(window: int) -> CacheGroup:
    """A group of one layer that attends within chunks."""
    return CacheGroup(CacheSpec("chunked", 1, 8, window), (3,))


def sliding(window: int) -> CacheGroup:
    """A group of one sliding-window layer."""
    return CacheGroup(CacheSpec("sliding", 1, 8, window), (1,))


def recurrent(every: int | None) -> CacheGroup:
    """A group of one recurrent layer, whose state is kept after each multiple of so many tokens."""
    return CacheGroup(CacheSpec("recurrent", 0, 0, window=2, snapshot_every=every), (2,))


def make_cache(
    *groups: CacheGroup, blocks: int | tuple[int, ...] = 11, block_size: int = 4, **more: Any
) -> CacheCoordinator:
    """A cache with `blocks` - 1 usable blocks in each group."""
    groups = groups or (FULL,)
    counts = blocks if isinstance(blocks, tuple) else (blocks,) * len(groups)
    return CacheCoordinator(CacheConfig(groups, block_size, counts, **more))


def make_request(tokens: list[int], name: str = "r", **more: Any) -> Request:
    """A request that waits, with row 0."""
    wire = WireRequest(
        request_id=name, prompt_token_ids=tokens, sampling=RowSampling(), max_tokens=99, **more
    )
    request = Request(wire, 1000, 0)
    request.row = 0
    return request


def admit(cache: CacheCoordinator, request: Request, length: int | None = None) -> int | None:
    """Look up, allocate, publish and count as the scheduler does; the hit, or None if no room."""
    hit = cache.find_prefix(request)
    length = request.num_known - hit if length is None else length
    if cache.allocate(request, length, hit) is None:
        return None
    request.num_processed = hit
    request.num_computed = hit + length
    cache.publish(request, request.num_computed)
    return hit


def decode(cache: CacheCoordinator, request: Request, token: int) -> bool:
    """Run one more token and commit it at once."""
    if cache.allocate(request, 1) is None:
        return False
    request.token_ids.append(token)
    request.num_computed += 1
    request.num_processed = request.num_computed
    cache.publish(request, request.num_computed)
    return True
