"""Teams: neighbouring rows whose contexts begin in the same blocks, which are then read once.

Rows that share a prefix, and the drafts of one row, are a team if the caller has them side by side
(the scheduler plans requests with equal first 256 tokens so). The device compares the block tables
of neighbours, and as many rows as have room in a tile of 16 queries (four, with four query heads
per KV head) are a team, whose common blocks are parts of their own. Partial results are merged as
those of a long context are, so no launch is added to a layer; a step has 8 more, for the list of
parts. Never in deterministic mode; `disable_cascade_attn=True` turns it off. Under a window each
row reads for itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jax import Array

from pallas_kernels.shapes import next_power_of_two
from pallas_kernels.tuning import table

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Int


# The smallest tile that tensor cores multiply.
SMALLEST_TILE = 16


class Teams(NamedTuple):
    """A row without neighbours like it is a team of one, which shares nothing."""

    leaders: Array  # i32[rows] the first row of each row's team
    sizes: Array  # i32[rows] rows of the team that a row leads, 0 for others
    shared: Array  # i32[rows] tokens that the team of a leader shares, 0 for others


def queries_of_a_tile(group: int) -> int:
    """The queries that a program multiplies at once, where so many heads share a KV head."""
    return next_power_of_two(max(group, SMALLEST_TILE))


def rows_of_a_team(group: int) -> int:
    """The rows whose queries have room in one tile."""
    return queries_of_a_tile(group) // group


def least_shared() -> int:
    """Tokens that neighbours must share to be worth a part of their own."""
    return table("decode_attention")["splits"]["least_shared"]


def shared_multiple() -> int:
    """The tokens of which rows read a multiple together."""
    return table("decode_attention")["splits"]["multiple"]


def teams_of(
    tables: Int[Array, "rows pages"],
    starts: Int[Array, " rows"],
    counts: Int[Array, " rows"],
    *,
    block_size: int,
    most: int,
) -> Teams:
    """Teams of at most `most` rows, whose tables begin at `starts` and hold `counts` tokens each.

    Each row keeps its last token, at least, for itself.
    """
    rows = jnp.arange(tables.shape[0], dtype=jnp.int32)
    common = shared_with_previous(tables, starts, counts, block_size)
    common = common // shared_multiple() * shared_multiple()
    joins = common >= least_shared()
    # The row at which a run of rows that join their predecessors begins.
    before = rows[None, :] <= rows[:, None]
    begins = jnp.max(jnp.where(before & ~joins[None, :], rows[None, :], 0), axis=1)
    leaders = rows - (rows - begins) % most
    led = leaders[None, :] == rows[:, None]  # [leader, member]
    sizes = jnp.sum(led.astype(jnp.int32), axis=1)
    others = led & (rows[None, :] > rows[:, None])
    shared = jnp.min(jnp.where(others, common[None, :], tables.shape[1] * block_size), axis=1)
    return Teams(leaders, sizes, jnp.where(sizes > 1, shared, 0))


def shared_with_previous(
    tables: Int[Array, "rows pages"],
    starts: Int[Array, " rows"],
    counts: Int[Array, " rows"],
    block_size: int,
) -> Int[Array, " rows"]:
    """Tokens that each row finds in the blocks in which the row before it has its own."""
    pages = jnp.arange(tables.shape[1], dtype=jnp.int32)
    differs = tables != jnp.roll(tables, 1, axis=0)
    equal_pages = jnp.min(jnp.where(differs, pages[None, :], tables.shape[1]), axis=1)
    most = jnp.minimum(counts, jnp.roll(counts, 1)) - 1
    common = jnp.where(starts == jnp.roll(starts, 1), equal_pages * block_size, 0)
    common = jnp.clip(jnp.minimum(common, most), 0)
    return jnp.where(jnp.arange(tables.shape[0]) > 0, common, 0)
