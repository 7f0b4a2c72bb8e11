"""Cache group of encoder layers: stores no KV, as tokens attend within their own step only.

Prompts run whole, so a request needs no unit and never has a prefix hit.
"""

from __future__ import annotations

from collections.abc import Sequence

from jengine.config import CacheSpec
from jengine.kvcache.block_pool import BlockPool
from jengine.kvcache.content_journal import ContentJournal
from jengine.kvcache.group_cache import IsExternal, NewUnits, Reach, never_external
from jengine.kvcache.residency import BlockResidency

NO_LIMIT = 2**62


class EncoderGroup:
    """Cache group of encoder layers: allocates nothing, so any request fits."""

    def __init__(self, index: int, spec: CacheSpec, block_size: int, num_units: int) -> None:
        self.pool = BlockPool(max(num_units, 2))  # of which nothing is ever taken

    @property
    def num_free(self) -> int:
        return self.pool.total

    @property
    def num_used(self) -> int:
        return 0

    @property
    def num_units(self) -> int:
        return self.pool.total

    @property
    def holds_back(self) -> bool:
        return False

    @staticmethod
    def units_needed(spec: CacheSpec, num_tokens: int, block_size: int, max_chunk: int) -> int:
        return 0

    def longest_hit(
        self, contents: Sequence[bytes], most: int, is_external: IsExternal = never_external
    ) -> int:
        return 0

    def read_by_hit(self, contents: Sequence[bytes]) -> list[bytes]:
        return []

    def writer(self, contents: Sequence[bytes], most: int) -> int | None:
        return None

    def chunk_end(self, start: int, end: int) -> int:
        return end

    def drafts_end(self, start: int, end: int) -> int:
        return end

    def demand(self, reach: Reach) -> int:
        return 0

    def reserve(self, reach: Reach) -> NewUnits | None:
        return None

    def capacity(self, holder: int) -> int:
        return NO_LIMIT

    def publish(self, holder: int, contents: Sequence[bytes], count: int) -> None:
        """Do nothing: nothing is cached."""

    def has_partial_block(self, contents: Sequence[bytes], partial: bytes) -> bool:
        return False

    def publish_partial_block(self, holder: int, contents: Sequence[bytes], partial: bytes) -> None:
        """Do nothing: nothing is cached."""

    def forget_partial_block(self, partial: bytes) -> None:
        """Do nothing: nothing is cached."""

    def step_ended(self) -> None:
        """Do nothing: no unit waits for a step."""

    def free(self, holder: int) -> None:
        """Do nothing: no unit is held."""

    def forget(self, content: bytes) -> None:
        """Do nothing: nothing is cached."""

    def forget_all(self) -> None:
        """Do nothing: nothing is cached."""

    def resize(self, num_units: int) -> None:
        self.pool = self.pool.resized(max(num_units, 2))

    def record(self, journal: ContentJournal) -> None:
        """Do nothing: nothing is cached."""

    def measure(self, residency: BlockResidency) -> None:
        """Do nothing: nothing is cached."""

    def table(self, holder: int) -> list[int]:
        return []

    def check(self) -> None:
        """Does nothing: this group allocates no blocks that could leak."""
