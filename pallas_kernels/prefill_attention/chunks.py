"""Recovers prefill chunks from tiles of queries, by joining consecutive runs of tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Bool, Int


class Chunks(NamedTuple):
    """One entry per run of tiles: a chunk's first run describes the whole chunk, its later runs and
    padding have 0 queries."""

    first: Array  # i32 [runs] index of the first query
    queries: Array  # i32 [runs]
    keys: Array  # i32 [runs] visible to the chunk's last query
    tables: Array  # i32 [runs, pages]
    chunk_of_token: Array  # i32 [tokens] first run of the token's chunk


def chunks(
    tables: Int[Array, "tiles pages"], starts: Int[Array, " tiles"],
    positions: Int[Array, " tokens"], runs: Int[Array, " firsts"] | None,
) -> Chunks:  # fmt: skip
    """Join consecutive runs of tiles of one prompt to chunks."""
    tiles = tables.shape[0]
    tile = positions.size // tiles
    first = jnp.arange(tiles) if runs is None else runs[:-1]
    stop = first + 1 if runs is None else runs[1:]
    begin_tile = jnp.minimum(first, tiles - 1)  # for empty runs at the end
    counted = jnp.cumulative_sum(positions >= 0, include_initial=True)
    count = (counted[stop * tile] - counted[first * tile]).astype(jnp.int32)
    begin = jnp.where(count > 0, positions[begin_tile * tile], 0)
    table, start = tables[begin_tile], starts[begin_tile]
    follows = _follows(begin, count, count == (stop - first) * tile, table, start)
    number = jnp.cumsum(~follows) - 1
    total = jnp.zeros_like(count).at[number].add(count)[number]
    queries = jnp.where(follows, 0, total)
    keys = jnp.where(queries > 0, begin - start + queries, 0)
    index = jnp.arange(first.size)
    leader = jax.lax.cummax(jnp.where(follows, 0, index))
    # Not by bisection: a loop would split the CUDA graph.
    run_of_tile = jnp.searchsorted(stop, jnp.arange(tiles), side="right", method="compare_all")
    owner = jnp.repeat(leader[run_of_tile], tile)
    return Chunks((begin_tile * tile).astype(jnp.int32), queries, keys, table, owner)


def _follows(
    begin: Array, count: Array, is_full: Array, table: Array, start: Array
) -> Bool[Array, " runs"]:
    """Whether a run continues the previous one: same table, next position."""
    same = (table[1:] == table[:-1]).all(axis=1) & (start[1:] == start[:-1])
    next_one = is_full[:-1] & (count[1:] > 0) & (begin[1:] == begin[:-1] + count[:-1])
    return jnp.pad(same & next_one, (1, 0))
