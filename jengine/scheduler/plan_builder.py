"""A plan under construction: what the step runs so far, and the remaining token budget.

In: requests with the tokens they run. Out: the finished Plan, decodes first. Must not know: who
should run, or why.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from jengine.media_spans import MediaSpan
from jengine.plan import (
    NOTHING,
    TOKENS,
    Drafts,
    Entries,
    Forks,
    KnownTokens,
    NewBlocks,
    NewRow,
    Plan,
    Transfers,
    Wanted,
)
from jengine.request import Request

Order = Callable[[Request], Any]
by_length: Order = attrgetter("num_computed")


def decode_order(shared_blocks: int) -> Order:
    """Sort key of decodes: by length, since attention over several rows runs as far as the longest;
    or with `shared_blocks`, by the first that many blocks, so that cascade attention reads a shared
    prefix once for neighbouring rows."""
    if not shared_blocks:
        return by_length

    def by_prefix(request: Request) -> tuple[bytes, int]:
        # A block's hash is that of everything up to its end.
        hashes = request.block_hashes
        prefix = hashes[shared_blocks - 1] if len(hashes) >= shared_blocks else b""
        return prefix, request.num_computed

    return by_prefix


class PlanBuilder:
    """Entries of one step. A decode costs 1 token of the budget, a chunk costs whole tiles."""

    __slots__ = (
        "budget", "decodes", "chunks", "draft_counts", "drafts", "encode", "forks", "next_drafts",
        "known",
        "new_blocks",
        "new_rows", "order", "preempted", "prompt_tokens", "prompt_limit", "repeats", "tile",
        "transfers",
    )  # fmt: skip

    def __init__(self, budget: int, tile: int, order: Order = by_length) -> None:
        self.budget = budget
        self.order = order
        self.tile = tile
        self.decodes: list[Request] = []
        self.chunks: list[tuple[Request, int]] = []
        self.prompt_limit = budget  # the most tokens of all chunks
        self.prompt_tokens = 0  # of chunks, in whole tiles
        self.new_rows: list[NewRow] = []
        self.known: list[KnownTokens] = []
        self.new_blocks: list[NewBlocks] = []
        self.preempted = False  # a request lost its row in this step
        self.repeats = 1  # how often its decodes run
        self.drafts: list[Drafts] = []
        self.draft_counts: dict[int, int] = {}  # by row, of those that have any
        self.next_drafts = 0  # that the step makes itself, for each row
        self.transfers: Transfers | None = None  # copies of blocks that go with the step
        self.encode: list[MediaSpan] = []  # images of rows that begin
        self.forks: list[Forks] = []  # copies of blocks for rows that begin

    @property
    def prompt_budget(self) -> int:
        """Tokens that prefill chunks may still take."""
        return min(self.budget, self.prompt_limit - self.prompt_tokens)

    @property
    def reads(self) -> bool:
        """Whether the plan samples for a request whose every token must be read before its next
        step."""
        ended = (one for one, length in self.chunks if one.num_computed + length == one.num_known)
        return any(request.reads_each_token for request in (*self.decodes, *ended))

    def cost(self, length: int) -> int:
        """Budget of a chunk: its length rounded up to whole tiles."""
        return -(-length // self.tile) * self.tile

    def add_chunk(self, request: Request, length: int) -> None:
        """Add a prefill chunk of `length` known tokens."""
        self.chunks.append((request, length))
        self.prompt_tokens += self.cost(length)
        self.budget -= self.cost(length)

    def add_drafts(self, drafts: Drafts, count: int) -> None:
        """Add `count` draft tokens after the row's decode; each uses a token of the budget."""
        self.drafts.append(drafts)
        self.draft_counts[drafts.row] = count
        self.budget -= count

    def withdraw(self, request: Request) -> None:
        """Remove a request's entries from the plan, before it is preempted."""
        if request in self.decodes:
            self.decodes.remove(request)
            self.budget += 1
        for chunk in [chunk for chunk in self.chunks if chunk[0] is request]:
            self.chunks.remove(chunk)
            self.prompt_tokens -= self.cost(chunk[1])
            self.budget += self.cost(chunk[1])
        self.new_blocks = [blocks for blocks in self.new_blocks if blocks.row != request.row]
        self.known = [known for known in self.known if known.row != request.row]

    def seal(self, step: int, released: list[int]) -> tuple[Plan, list[Request]]:
        """The plan and the request of each entry."""
        self.decodes.sort(key=self.order)
        requests = self.decodes + [request for request, _ in self.chunks]
        rows = [request.row for request in requests]
        lengths = [self.repeats] * len(self.decodes) + [length for _, length in self.chunks]
        if self.drafts:
            for index, row in enumerate(rows[: len(self.decodes)]):
                lengths[index] += self.draft_counts.get(row, 0)
        assert min(rows, default=0) >= 0, (
            f"without a row: {[one.request_id for one in requests if one.row < 0]}"
        )
        starts = [request.num_computed for request in requests]
        wanted = [
            advance(request, length, step)
            for request, length in zip(requests, lengths, strict=True)
        ]
        plan = Plan(
            step=step,
            entries=Entries.of_columns(rows, starts, lengths, wanted),
            num_decodes=len(self.decodes),
            new_rows=self.new_rows,
            new_blocks=self.new_blocks,
            released=released,
            repeats=self.repeats,
            known=self.known,
            drafts=self.drafts,
            next_drafts=self.next_drafts,
            transfers=self.transfers,
            encode=self.encode,
            forks=self.forks,
        )
        return plan, requests


def advance(request: Request, length: int, step: int) -> Wanted:
    """Advance the request's computed count by `length`. Returns what the entry wants sampled."""
    request.num_computed = end = request.num_computed + length
    request.last_step = step
    if end < request.known_at_admission:
        return NOTHING
    request.num_in_flight += 1
    return TOKENS
