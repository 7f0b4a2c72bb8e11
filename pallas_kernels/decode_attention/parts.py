"""Divides each row's context into parts, of which programs take one at a time.

No program is launched for a context that no row has. Without teams, the number of a row's parts
depends on shapes and on the row's own length only, so its arithmetic does not depend on other rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jax import Array

from pallas_kernels.decode_attention.teams import Teams
from pallas_kernels.tuning import table

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Int

# The first row, first token, end, number among the row's parts, how many rows read it.
FIELDS = 5


class Split(NamedTuple):
    """How contexts of up to `tokens` in `rows` rows are divided."""

    rows: int
    kv_heads: int
    tokens: int
    has_teams: bool = False  # whether rows may read what they share together

    @property
    def least(self) -> int:
        """Parts of a row that fill a device, if rows are long enough."""
        return -(-_sizes()["programs"] // (self.rows * self.kv_heads))

    @property
    def most(self) -> int:
        """Parts of a row at most: this many in all rows are kept until they are merged."""
        sizes = _sizes()
        return min(max(sizes["kept"] // self.rows, sizes["most_of_many"]), sizes["most"])

    @property
    def parts(self) -> int:
        """Parts of all rows at most: a row in a team may have one more."""
        return self.rows * (self.of_row(self.tokens) + self.has_teams)

    @property
    def slots(self) -> int:
        """Programs per kv head: a part for each if no row has more than the least number, and as
        many again as fill a device."""
        spare = -(-_sizes()["programs"] // self.kv_heads)
        return min(self.parts, self.rows * self.least + spare)

    def of_row(self, count: int) -> int:
        """Parts of a row with this many tokens in view, before they are rounded to chunks."""
        sizes = _sizes()
        wanted = max(self.least, -(-count // sizes["longest"]))
        return max(min(wanted, -(-count // sizes["shortest"]), self.most), 1)


def _sizes() -> dict[str, int]:
    return table("decode_attention")["splits"]


def part_list(
    split: Split,
    starts: Int[Array, " rows"],
    lengths: Int[Array, " rows"],
    window: int | None,
    teams: Teams | None = None,
) -> Int[Array, " words"]:
    """The parts of rows of these lengths, whose tables begin at the positions `starts`."""
    first = jnp.zeros_like(lengths)
    if window is not None:
        first = jnp.maximum(lengths - window - starts, 0)
    # A padding row has length 0, and its start may be larger.
    return parts_between(split, first, jnp.maximum(lengths - starts - first, 0), teams)


class Sources(NamedTuple):
    """What is divided into parts: contexts of rows, or what teams share. All i32."""

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
    """The fields of all parts, [FIELDS, split.parts]; then their number; then that of each row's
    parts; then a zero for each row and KV head, by which programs count the parts that are done,
    and which they leave at zero.

    Row r reads count[r] tokens from first[r] on, counted from the first of its table. A row without
    tokens has one part, to write zeros. What a team shares comes first, and counts for all of it.
    """
    sources = own = own_contexts(split, first, count, teams)
    shared_parts = jnp.zeros_like(own.parts)
    if teams is not None:
        shared = shared_contexts(split, own, teams)
        shared_parts = shared.parts[teams.leaders]
        sources = Sources(*map(jnp.concatenate, zip(shared, own, strict=True)))
    # Over a mask: for so few rows it is one fusion, unlike a cumulative sum.
    source = jnp.arange(sources.parts.size, dtype=jnp.int32)
    earlier = source[None, :] < source[:, None]
    before = jnp.sum(jnp.where(earlier, sources.parts[None, :], 0), axis=1)
    index = jnp.arange(split.parts, dtype=jnp.int32)
    ends = (before + sources.parts)[None, :]
    at = jnp.sum((index[:, None] >= ends).astype(jnp.int32), axis=1)
    at = jnp.minimum(at, before.size - 1)  # for what is behind the last part
    row, number = sources.row[at], index - before[at]
    low = sources.first[at] + number * sources.length[at]
    high = jnp.minimum(low + sources.length[at], sources.end[at])
    number += jnp.where(at >= before.size - split.rows, shared_parts[row], 0)
    counters = jnp.zeros(split.rows * split.kv_heads, jnp.int32)
    total = jnp.sum(sources.parts)[None]
    return jnp.concatenate(
        [row, low, high, number, sources.rows[at], total, own.parts + shared_parts, counters]
    )


def own_contexts(split: Split, first: Array, count: Array, teams: Teams | None) -> Sources:
    """What each row reads alone."""
    if teams is not None:
        shared = teams.shared[teams.leaders]
        first, count = first + shared, count - shared
    length = part_length(count, split.least, split.most)
    parts = jnp.maximum(-(-count // length), 1)
    rows = jnp.arange(split.rows, dtype=jnp.int32)
    return Sources(rows, jnp.ones_like(rows), first, first + count, length, parts)


def shared_contexts(split: Split, own: Sources, teams: Teams) -> Sources:
    """What each row reads with the team that it leads, in as many parts as its rows would have."""
    led = teams.leaders[None, :] == own.row[:, None]
    most = split.of_row(split.tokens) - jnp.max(jnp.where(led, own.parts, 0), axis=1)
    length = part_length(teams.shared, split.least * teams.sizes, jnp.maximum(most, 1))
    parts = -(-teams.shared // length)
    return Sources(own.row, teams.sizes, jnp.zeros_like(own.row), teams.shared, length, parts)


def part_length(
    count: Int[Array, " rows"], least: int | Array, most: int | Array
) -> Int[Array, " rows"]:
    """Tokens of parts, in whole chunks, so that there are `least` to `most` if they are long."""
    sizes = _sizes()
    wanted = jnp.maximum(least, -(-count // sizes["longest"]))
    parts = jnp.minimum(jnp.minimum(wanted, -(-count // sizes["shortest"])), most)
    length = -(-count // jnp.maximum(parts, 1))
    return jnp.maximum(-(-length // sizes["multiple"]), 1) * sizes["multiple"]
