"""Splits each row's context into parts (split-K) that programs process one at a time.

Without teams, a row's number of parts depends only on shapes and its own length, so its arithmetic
does not depend on other rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jax import Array

from pallas_kernels.decode_attention.teams import Teams
from pallas_kernels.shapes import filling
from pallas_kernels.tuning import table

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Int

# Per part: first row, first token, end token, index among the row's parts, rows that read it.
FIELDS = 5


class Split(NamedTuple):
    """How contexts of up to `tokens` tokens in `rows` rows are split."""

    rows: int
    kv_heads: int
    tokens: int
    has_teams: bool = False  # whether rows may read a shared prefix once

    @property
    def least(self) -> int:
        """Parts per row that fill the device if all rows are long."""
        return -(-filling(_sizes()["waves"]) // (self.rows * self.kv_heads))

    @property
    def most(self) -> int:
        """Maximum parts per row, which bounds the partial results kept until the merge."""
        sizes = _sizes()
        return min(max(sizes["kept"] // self.rows, sizes["most_of_many"]), sizes["most"])

    @property
    def parts(self) -> int:
        """Maximum parts over all rows; a row in a team may have one more."""
        return self.rows * (self.of_row(self.tokens) + self.has_teams)

    @property
    def slots(self) -> int:
        """Programs per KV head: enough for the usual number of parts, plus enough to fill the
        device."""
        spare = -(-filling(_sizes()["waves"]) // self.kv_heads)
        return min(self.parts, self.rows * self.least + spare)

    def of_row(self, count: int) -> int:
        """Parts of a row with `count` attended tokens, before rounding to whole chunks."""
        sizes = _sizes()
        wanted = max(self.least, -(-count // sizes["longest"]))
        return max(min(wanted, -(-count // sizes["shortest"]), self.most), 1)


def _sizes() -> dict[str, int]:
    return table("decode_attention")["splits"]


def zero_counters(rows: int, heads: int) -> Int[Array, " counters"]:
    """Counters of finished parts: enough for each row and KV head, or tile of heads."""
    return jnp.zeros(rows * heads, jnp.int32)


def part_list(
    split: Split,
    starts: Int[Array, " rows"],
    lengths: Int[Array, " rows"],
    window: int | None,
    teams: Teams | None = None,
) -> Int[Array, " words"]:
    """Part list (see `parts_between`) of rows with these lengths and optional sliding window."""
    first = jnp.zeros_like(lengths)
    if window is not None:
        first = jnp.maximum(lengths - window - starts, 0)
    # A padding row has length 0, and its start may be larger.
    return parts_between(split, first, jnp.maximum(lengths - starts - first, 0), teams)


class PartSources(NamedTuple):
    """Contexts to be split: of single rows, or shared by a team. All i32."""

    row: Array  # the first that reads it
    rows: Array  # how many do
    first: Array  # token
    end: Array
    length: Array  # of a part
    parts: Array


def parts_between(
    split: Split,
    first: Int[Array, " rows"],
    count: Int[Array, " rows"],
    teams: Teams | None = None,
) -> Int[Array, " words"]:
    """Build the array that kernels read parts from.

    Layout: fields [FIELDS, split.parts], number of parts, parts per row. Row r reads count[r]
    tokens from first[r], relative to its table. An empty row has one part, which writes zeros. A
    team's shared parts come first and count for each of its rows.
    """
    sources = own = own_contexts(split, first, count, teams)
    shared_parts = jnp.zeros_like(own.parts)
    if teams is not None:
        shared = shared_contexts(split, own, teams)
        shared_parts = shared.parts[teams.leaders]
        sources = PartSources(*map(jnp.concatenate, zip(shared, own, strict=True)))
    # A masked sum: one fusion for so few rows, unlike a cumulative sum.
    source = jnp.arange(sources.parts.size, dtype=jnp.int32)
    earlier = source[None, :] < source[:, None]
    before = jnp.sum(jnp.where(earlier, sources.parts[None, :], 0), axis=1)
    index = jnp.arange(split.parts, dtype=jnp.int32)
    ends = (before + sources.parts)[None, :]
    at = jnp.sum((index[:, None] >= ends).astype(jnp.int32), axis=1)
    at = jnp.minimum(at, before.size - 1)  # unused entries after the last part
    row, number = sources.row[at], index - before[at]
    low = sources.first[at] + number * sources.length[at]
    high = jnp.minimum(low + sources.length[at], sources.end[at])
    number += jnp.where(at >= before.size - split.rows, shared_parts[row], 0)
    total = jnp.sum(sources.parts)[None]
    return jnp.concatenate(
        [row, low, high, number, sources.rows[at], total, own.parts + shared_parts]
    )


def own_contexts(split: Split, first: Array, count: Array, teams: Teams | None) -> PartSources:
    """Contexts that each row reads by itself."""
    if teams is not None:
        shared = teams.shared[teams.leaders]
        first, count = first + shared, count - shared
    length = part_length(count, split.least, split.most)
    parts = jnp.maximum(-(-count // length), 1)
    rows = jnp.arange(split.rows, dtype=jnp.int32)
    return PartSources(rows, jnp.ones_like(rows), first, first + count, length, parts)


def shared_contexts(split: Split, own: PartSources, teams: Teams) -> PartSources:
    """Contexts shared by teams, split into as many parts as their rows' budgets allow."""
    led = teams.leaders[None, :] == own.row[:, None]
    most = split.of_row(split.tokens) - jnp.max(jnp.where(led, own.parts, 0), axis=1)
    length = part_length(teams.shared, split.least * teams.sizes, jnp.maximum(most, 1))
    parts = -(-teams.shared // length)
    return PartSources(own.row, teams.sizes, jnp.zeros_like(own.row), teams.shared, length, parts)


def part_length(
    count: Int[Array, " rows"], least: int | Array, most: int | Array
) -> Int[Array, " rows"]:
    """Tokens per part, a multiple of the chunk, for `least` to `most` parts of long contexts."""
    sizes = _sizes()
    wanted = jnp.maximum(least, -(-count // sizes["longest"]))
    parts = jnp.minimum(jnp.minimum(wanted, -(-count // sizes["shortest"])), most)
    length = -(-count // jnp.maximum(parts, 1))
    return jnp.maximum(-(-length // sizes["multiple"]), 1) * sizes["multiple"]
