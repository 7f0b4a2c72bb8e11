"""Divides each row's context into parts, of which programs take one at a time.

The number of a row's parts depends on shapes and on the row's own length only. So a row's
arithmetic does not depend on other rows, and no program is launched for a context that no row has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jax import Array

from pallas_kernels.tuning import table

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Int

# Row, first token, end, the row's first part, the number of the row's parts.
FIELDS = 5


class Split(NamedTuple):
    """How contexts of up to `tokens` in `rows` rows are divided."""

    rows: int
    kv_heads: int
    tokens: int

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
        """Parts of all rows at most."""
        return self.rows * self.of_row(self.tokens)

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
) -> Int[Array, " words"]:
    """The parts of rows of these lengths, whose tables begin at the positions `starts`."""
    first = jnp.zeros_like(lengths)
    if window is not None:
        first = jnp.maximum(lengths - window - starts, 0)
    # A padding row has length 0, and its start may be larger.
    return parts_between(split, first, jnp.maximum(lengths - starts - first, 0))


def parts_between(
    split: Split, first: Int[Array, " rows"], count: Int[Array, " rows"]
) -> Int[Array, " words"]:
    """The fields of all parts, [FIELDS, split.parts]; then their number; then a zero for each row
    and KV head, by which programs count the parts that are done, and which they leave at zero.

    Row r reads count[r] tokens from first[r] on, counted from the first of its table. A row without
    tokens has one part, to write zeros.
    """
    length = part_length(split, count)
    parts = jnp.maximum(-(-count // length), 1)
    rows = jnp.arange(split.rows, dtype=jnp.int32)
    # Sums over a mask: for so few rows they are one fusion, unlike a cumulative sum.
    before = jnp.sum(jnp.where(rows[None, :] < rows[:, None], parts[None, :], 0), axis=1)
    index = jnp.arange(split.parts, dtype=jnp.int32)
    row = jnp.sum((index[:, None] >= (before + parts)[None, :]).astype(jnp.int32), axis=1)
    row = jnp.minimum(row, split.rows - 1)  # for what is behind the last part
    low = first[row] + (index - before[row]) * length[row]
    high = jnp.minimum(low + length[row], (first + count)[row])
    counters = jnp.zeros(split.rows * split.kv_heads, jnp.int32)
    return jnp.concatenate(
        [row, low, high, before[row], parts[row], jnp.sum(parts)[None], counters]
    )


def part_length(split: Split, count: Int[Array, " rows"]) -> Int[Array, " rows"]:
    """Tokens of a row's parts, in whole chunks."""
    sizes = _sizes()
    wanted = jnp.maximum(split.least, -(-count // sizes["longest"]))
    parts = jnp.minimum(jnp.minimum(wanted, -(-count // sizes["shortest"])), split.most)
    length = -(-count // jnp.maximum(parts, 1))
    return jnp.maximum(-(-length // sizes["multiple"]), 1) * sizes["multiple"]
