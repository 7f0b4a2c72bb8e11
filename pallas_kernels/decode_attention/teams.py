"""Teams (cascade attention): neighbouring rows with a common prefix of blocks, which is read once.

The scheduler places requests with equal first 256 tokens side by side, as are the drafts of a row.
The device compares neighbours' block tables and groups as many rows as fit a tile of queries;
shared blocks become separate parts, merged like those of a long context. This adds 8 launches per
step and none per layer. Disabled in deterministic mode, by `disable_cascade_attn=True`, and under a
sliding window.
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
    """Team of each row. A row that shares no prefix is a team of one with `shared` 0."""

    leaders: Array  # i32[rows] the first row of each row's team
    sizes: Array  # i32[rows] rows of the team that a row leads, 0 for others
    shared: Array  # i32[rows] tokens that the team of a leader shares, 0 for others


def queries_of_a_tile(group: int) -> int:
    """Queries per program tile for a group of query heads."""
    return next_power_of_two(max(group, SMALLEST_TILE))


def rows_of_a_team(group: int) -> int:
    """Rows whose queries fit in one tile."""
    return queries_of_a_tile(group) // group


def least_shared() -> int:
    """Minimum shared tokens for which a separate part pays off."""
    return table("decode_attention")["splits"]["least_shared"]


def shared_multiple() -> int:
    """Shared prefixes are rounded down to a multiple of this many tokens."""
    return table("decode_attention")["splits"]["multiple"]


def teams_of(
    tables: Int[Array, "rows pages"],
    starts: Int[Array, " rows"],
    counts: Int[Array, " rows"],
    *,
    block_size: int,
    most: int,
) -> Teams:
    """Group rows into teams of at most `most`. Tables begin at `starts` and hold `counts` tokens.
    Each row keeps at least its last token for itself."""
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
    """Tokens in leading blocks that each row has in common with the row before it."""
    pages = jnp.arange(tables.shape[1], dtype=jnp.int32)
    differs = tables != jnp.roll(tables, 1, axis=0)
    equal_pages = jnp.min(jnp.where(differs, pages[None, :], tables.shape[1]), axis=1)
    most = jnp.minimum(counts, jnp.roll(counts, 1)) - 1
    common = jnp.where(starts == jnp.roll(starts, 1), equal_pages * block_size, 0)
    common = jnp.clip(jnp.minimum(common, most), 0)
    return jnp.where(jnp.arange(tables.shape[0]) > 0, common, 0)
