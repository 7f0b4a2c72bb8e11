"""Journal of a cache's contents, for routers that route by cached prefix.

In: content keys of one group, as blocks are published and reused. Out: changes in order, each a
mark and a block hash. Any thread may take them. Must not know who reads them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

STORED, REMOVED = b"+", b"-"
HASH_BYTES = 32
# Maximum unread changes; older ones are dropped, which only makes routing worse.
MOST = 1_000_000


class ContentJournal:
    """Log of cached contents that were added or removed."""

    def __init__(self) -> None:
        self._changes: deque[bytes] = deque(maxlen=MOST)

    def stored(self, key: bytes) -> None:
        self._changes.append(STORED + key[:HASH_BYTES])

    def removed(self, key: bytes) -> None:
        self._changes.append(REMOVED + key[:HASH_BYTES])

    def take(self) -> list[bytes]:
        """Return and clear the changes."""
        return [self._changes.popleft() for _ in range(len(self._changes))]


class HeldContents:
    """Replica of a cache's set of block hashes, kept up to date from its journal."""

    def __init__(self) -> None:
        self._hashes: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._hashes)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._hashes)

    def note(self, changes: list[bytes]) -> None:
        """Apply changes in order."""
        for change in changes:
            mark, content = change[:1], change[1:]
            if mark == STORED:
                self._hashes.add(content)
            else:
                self._hashes.discard(content)

    def as_changes(self, most: int) -> Iterator[list[bytes]]:
        """Yield changes that build this set from an empty one, at most `most` at a time."""
        hashes = iter(self._hashes)
        while some := [STORED + one for one in islice(hashes, most)]:
            yield some

    def prefix(self, hashes: list[bytes]) -> int:
        """Number of leading hashes that are cached."""
        return next((i for i, one in enumerate(hashes) if one not in self._hashes), len(hashes))
