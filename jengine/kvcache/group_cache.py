"""Protocol of cache groups, one implementation per kind, driven by the coordinator.

A group owns the units (blocks, slots or snapshots) of each request. In: how far a request is to
run. Out: unit ids for the device. Must not know the other groups.
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
    # New holder: content of the possibly partial block after the hit, which it starts with a copy
    # of; empty: none.
    partial: bytes = b""


class NewUnits(NamedTuple):
    """Units appended to a request's table, starting at index `first`."""

    first: int
    units: list[int]
    # Copy on write: the unit with the partial block's content, and the new unit.
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
        """Latest allowed end of a chunk that begins at `start`: after `start`, at most `end`."""

    def drafts_end(self, start: int, end: int) -> int:
        """Latest allowed end of a decode with drafts that begins at `start`: after `start`, at most
        `end`."""

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
        """Make the holder's last, possibly partial block findable behind `contents`. No step in
        flight may still write to it."""

    def forget_partial_block(self, partial: bytes) -> None:
        """Make a partial block unfindable, if it still is; full blocks stay."""

    def step_ended(self) -> None:
        """Contents published so far may be read by steps planned from now on."""

    def free(self, holder: int) -> None:
        """Free all units of a holder. Published contents stay cached until reuse."""

    def forget(self, content: bytes) -> None:
        """Invalidate a content, also in units that requests hold."""

    def forget_all(self) -> None:
        """Invalidate all contents."""

    def resize(self, num_units: int) -> None:
        """Change the number of units, keeping the contents of those that remain. No request may
        hold any."""

    def record(self, journal: ContentJournal) -> None:
        """Journal the contents that become findable or cease to be."""

    def measure(self, residency: BlockResidency) -> None:
        """Have `residency` sample how long contents stay cached."""

    def table(self, holder: int) -> list[int]:
        """A copy of the holder's unit ids, as the device knows them."""

    def check(self) -> None:
        """Assert that every unit's reference count equals its number of holders."""


class KindOfGroup(Protocol):
    """The class of a kind of cache groups: its constructor, and what is known before a group
    exists."""

    def __call__(
        self, index: int, spec: CacheSpec, block_size: int, num_units: int, /
    ) -> GroupCache: ...

    def units_needed(
        self, spec: CacheSpec, num_tokens: int, block_size: int, max_chunk: int, /
    ) -> int:
        """Maximum units that one request of `num_tokens` holds at once when run in chunks of
        `max_chunk`."""
        ...
