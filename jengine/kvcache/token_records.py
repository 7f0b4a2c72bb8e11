"""Per-token results besides token ids, such as routed experts, stored per block by content.

In: rows (one per token) as steps are read, and which blocks requests share. Out: a request's rows,
those of its cached prefix included. Steps are read in plan order, so the rows of a cached block are
there before a request takes them. Must not know what a row means.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from jengine.request import Request


class BlockRecord:
    """Rows of one block's tokens; None until its step has been read."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: np.ndarray | None = None


class RequestRecords:
    """Rows of one request by position, and the blocks it shares with others."""

    __slots__ = ("blocks", "hit", "next", "read", "rows", "taken")

    def __init__(self, taken: int) -> None:
        self.rows: np.ndarray | None = None
        self.read = 0  # the end of the rows that steps have brought
        self.next = 0  # where the decode after the steps that were read begins
        self.blocks: list[BlockRecord] = []
        self.hit = 0  # of these so many first ones were computed by others, and are not copied yet
        self.taken = taken  # rows before this position were given out or are not wanted

    def add(self, start: int, rows: np.ndarray) -> None:
        """Store rows from position `start` on, over earlier ones."""
        end = start + len(rows)
        self._reserve(end, rows)
        assert self.rows is not None
        self.rows[start:end] = rows
        self.read = max(self.read, end)

    def copy_hit(self, size: int) -> None:
        """Copy the rows of shared blocks that other requests computed."""
        for index in range(self.hit):
            rows = self.blocks[index].rows
            assert rows is not None, f"block {index} was found before its step was planned"
            self.add(index * size, rows)
        self.hit = 0

    def _reserve(self, end: int, like: np.ndarray) -> None:
        have = 0 if self.rows is None else len(self.rows)
        if end <= have:
            return
        grown = np.zeros((max(end, 2 * have), *like.shape[1:]), like.dtype)
        if self.rows is not None:
            grown[:have] = self.rows
        self.rows = grown


class TokenRecords:
    """Per-token rows of all requests, and of up to `most` findable blocks.

    A prefix hit ends before the first block without rows.
    """

    def __init__(self, block_size: int, most: int) -> None:
        self._size = block_size
        self._most = most
        self._blocks: OrderedDict[bytes, BlockRecord] = OrderedDict()  # least recently used first

    def longest_hit(self, contents: Sequence[bytes], most: int) -> int:
        """Number of leading contents, at most `most`, whose rows are known or arrive with steps in
        flight."""
        known = self._blocks
        return next((i for i, one in enumerate(contents[:most]) if one not in known), most)

    def begin(self, request: Request, hit: Sequence[bytes]) -> None:
        """Start an admitted request's records with the shared blocks of its prefix hit."""
        own = request.records
        if own is None:
            own = request.records = RequestRecords(request.wire.routed_experts_start)
        own.blocks, own.hit = [self._blocks[content] for content in hit], len(hit)
        for content in hit:
            self._blocks.move_to_end(content)

    def publish(self, request: Request, contents: Sequence[bytes], count: int) -> None:
        """Make the records of the request's first `count` blocks findable."""
        own = request.records
        assert own is not None, "requests are admitted before they publish"
        for index in range(len(own.blocks), count):
            block = self._blocks.setdefault(contents[index], BlockRecord())
            self._blocks.move_to_end(contents[index])
            own.blocks.append(block)
            if (index + 1) * self._size <= own.read:
                self._fill(own, index)
        while len(self._blocks) > self._most:
            self._blocks.popitem(last=False)

    def add(self, request: Request, start: int | None, rows: np.ndarray, count: int) -> None:
        """Add rows of a step's tokens, from position `start` (None: a decode). Only the first
        `count` are the request's; the rest are rejected drafts."""
        own = request.records
        assert own is not None, "only admitted requests run"
        start, rows = own.next if start is None else start, rows[:count]
        own.add(start, rows)
        own.next = start + count
        last = min((start + len(rows)) // self._size, len(own.blocks))
        for index in range(start // self._size, last):
            self._fill(own, index)

    def take(self, request: Request, end: int) -> np.ndarray | None:
        """Rows before `end` that were not returned before; None if there are none."""
        own = request.records
        if own is None or own.taken >= end:
            return None
        own.copy_hit(self._size)
        assert own.read >= end and own.rows is not None, "tokens that are known have run"
        first, own.taken = own.taken, end
        return own.rows[first:end].copy()

    def forget(self) -> None:
        """Drop the blocks whose rows were to come from steps that will never be read."""
        for content in [one for one, block in self._blocks.items() if block.rows is None]:
            del self._blocks[content]

    def _fill(self, own: RequestRecords, index: int) -> None:
        assert own.rows is not None, "rows were added"
        own.blocks[index].rows = own.rows[index * self._size : (index + 1) * self._size].copy()
