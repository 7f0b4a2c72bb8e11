"""Records of block copies, and of a waiting request whose blocks are being loaded.

In: block and slot ids. Out: columns for plans. Must not know why or when blocks are copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from jengine.plan import BlockCopies
from jengine.request import Request, Status


class Copy(NamedTuple):
    """A device block and a host slot of the same cache group."""

    group: int
    block: int
    slot: int
    key: bytes


class Loading:
    """A waiting request whose blocks are being loaded to the device."""

    def __init__(self, request: Request, keys: list[bytes], source: str, tokens: int) -> None:
        self.request = request
        self.was: Status = request.status
        self.keys = keys  # what it lacks on the device
        self.source = source
        self.tokens = tokens  # of its prefix that are loaded
        self.slots: list[tuple[int, int]] = []  # pinned for it: group, slot
        self.held: list[tuple[int, int]] = []  # pinned for it: group, block
        self.left: deque[Copy] = deque()  # not in a plan yet
        self.is_placed = False


def by_group(copies: Sequence[Copy], *, named: bool = False) -> list[BlockCopies]:
    """Group copies by cache group, as columns of block and slot ids."""
    found = []
    for group in sorted({copy.group for copy in copies}):
        own = [copy for copy in copies if copy.group == group]
        keys = [copy.key for copy in own] if named else []
        found.append(BlockCopies(group, [c.block for c in own], [c.slot for c in own], keys))
    return found
