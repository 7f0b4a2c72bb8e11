"""The protocol of cache groups, which the coordinator drives; every kind of group implements it.

A group owns what it holds for each request, in its units: blocks, slots or snapshots.
In: how far a request is to run. Out: unit ids for the device. Must not know the other groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from jengine.config import CacheSpec
from jengine.kvcache.block_pool import BlockPool
from jengine.kvcache.content_journal import ContentJournal
from jengine.kvcache.residency import BlockResidency


class Reach(NamedTuple):
    """How far a request will run: what its allocation must cover."""

    holder: int  # who holds the units: a request from its admission to the release of its units
    end: int  # tokens
    settled: int  # tokens before this position are not computed again by any step in flight
    hit: Sequence[bytes] = ()  # of a new holder: contents of the cached blocks it begins with
    start: int = 0  # position of the first token that is to run
    ahead: int = 0  # tokens up to `end` that do not run: a drafter writes its drafts there
    # Of a new holder: the content of the block behind those of the hit that it begins with a copy
    # of, which need not be full; empty: none.
    partial: bytes = b""


class NewUnits(NamedTuple):
    """Units appended to a request's table, starting at index `first`."""

    first: int
    units: list[int]
    # The unit with the content of the holder's partial block, and the new one to copy it to.
    copied: tuple[int, int] | None = None


# Whether a content key can be found outside of the device.
IsExternal = Callable[[bytes], bool]


def never_external(key: bytes) -> bool:
    """Predicate of an engine without offloading: no content is available outside the device."""
    return False


class GroupCache(Protocol):
    """One cache group. Contents are block hashes; a request's full blocks have one each."""

    pool: BlockPool

    @property
    def num_free(self) -> int:
        """Units available to `reserve`."""

    @property
    def num_used(self) -> int:
        """Units that requests hold."""

    @property
    def num_units(self) -> int:
        """Total number of units."""

    @property
    def holds_back(self) -> bool:
        """Whether some published contents become findable only after the planned steps."""

    def longest_hit(
        self, contents: Sequence[bytes], most: int, is_external: IsExternal = never_external
    ) -> int:
        """Number of leading blocks, at most `most`, that are cached or, by `is_external`, could be
        loaded."""

    def read_by_hit(self, contents: Sequence[bytes]) -> list[bytes]:
        """Keys of the blocks that a request reads after a prefix hit of these contents."""

    def writer(self, contents: Sequence[bytes], most: int) -> int | None:
        """Holder whose planned steps will make `longest_hit` longer, or None."""

    def chunk_end(self, start: int, end: int) -> int:
        """Where a chunk from `start` on may end at the latest: after `start`, at most at `end`."""

    def drafts_end(self, start: int, end: int) -> int:
        """Where a decode from `start` on with drafts, of which some may not count, may end at the
        latest: after `start`, at most at `end`."""

    def demand(self, reach: Reach) -> int:
        """Net units that `reserve` takes; negative if it gives back more."""

    def reserve(self, reach: Reach) -> NewUnits | None:
        """Extend the holder's table; None if nothing is new. `demand` units must be free.

        Units that no step will read again are freed first.
        """

    def capacity(self, holder: int) -> int:
        """Tokens that the holder's units can hold."""

    def publish(self, holder: int, contents: Sequence[bytes], count: int) -> None:
        """Make the holder's first `count` full blocks findable."""

    def has_partial_block(self, contents: Sequence[bytes], partial: bytes) -> bool:
        """Whether these blocks, followed by this partial block, are cached."""

    def publish_partial_block(self, holder: int, contents: Sequence[bytes], partial: bytes) -> None:
        """Let others find the holder's last block, behind these, which need not be full. No step in
        flight still writes to it."""

    def forget_partial_block(self, partial: bytes) -> None:
        """Make a partial block unfindable, if it is still there; full blocks of prefixes stay."""

    def step_ended(self) -> None:
        """Steps planned from now on may read all contents published so far."""

    def free(self, holder: int) -> None:
        """Free all units of a holder. Published contents stay cached until reuse."""

    def forget(self, content: bytes) -> None:
        """Invalidate a content, also in units that requests hold."""

    def forget_all(self) -> None:
        """Invalidate all contents."""

    def resize(self, num_units: int) -> None:
        """Change the number of units, keeping the contents of those that remain. No request holds
        any."""

    def record(self, journal: ContentJournal) -> None:
        """Record in a journal which contents become findable, and which cease to be."""

    def measure(self, residency: BlockResidency) -> None:
        """Have `residency` sample how long contents stay."""

    def table(self, holder: int) -> list[int]:
        """A copy of the holder's unit ids, as the device knows them."""

    def check(self) -> None:
        """Assert that the owners of every unit are the holders that have it."""


class KindOfGroup(Protocol):
    """What a class of cache groups provides before its groups exist, its constructor among it."""

    def __call__(
        self, index: int, spec: CacheSpec, block_size: int, num_units: int, /
    ) -> GroupCache: ...

    def units_needed(
        self, spec: CacheSpec, num_tokens: int, block_size: int, max_chunk: int, /
    ) -> int:
        """The most units that one request of `num_tokens`, run in such chunks, holds at once."""
        ...
