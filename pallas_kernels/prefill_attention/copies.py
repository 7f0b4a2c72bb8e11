"""Dequantized bfloat16 copies of keys and values, for the long chunks of a step.

Otherwise every query tile of a chunk would dequantize its keys and values again, and store them to
shared memory where matmuls read operands there, as on Hopper. A copy is made per layer, in memory
that layers share. Short chunks, and those that do not fit, attend to the codes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.decode_attention.teams import SMALLEST_TILE
from pallas_kernels.launch import Launch, call_kernel
from pallas_kernels.layout import cache_shape, codes_of, has_scales, kv_heads_of, strides
from pallas_kernels.prefill_attention.chunks import Chunks, chunks
from pallas_kernels.prefill_attention.kernels import ELSEWHERE, copy_heads
from pallas_kernels.shapes import as_scalar, next_power_of_two
from pallas_kernels.tuning import table

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Int

LONG = 128  # tokens of a chunk from which its copy costs less than it saves
# Room for copies: one whole table or PER_TOKEN tokens per token of the step, at most MOST_BYTES.
PER_TOKEN, MOST_BYTES = 4, 1 << 29


class Copies(NamedTuple):
    """The copies, and which tokens attend to them."""

    cache: Array  # bf16 [1, 2, pages, block_size, width]
    tables: Array  # i32 [tiles, pages] of the copies
    inside: Array  # i32 [tokens] positions, ELSEWHERE where there is no copy
    outside: Array  # i32 [tokens] positions, ELSEWHERE where there is one


def copies(
    cache: Array, layer: int | Array, tables: Int[Array, "tiles pages"],
    starts: Int[Array, " tiles"], positions: Int[Array, " tokens"],
    runs: Int[Array, " firsts"] | None, head_dim: int,
) -> Copies | None:  # fmt: skip
    """Copy the blocks of long chunks; None for an unquantized cache, or a step that cannot hold a
    long chunk."""
    room = pages_of_copies(cache, tables, positions, head_dim) if has_scales(cache.dtype) else 0
    if not room:
        return None
    tiles, pages = tables.shape
    found = chunks(tables, starts, positions, runs)
    first, is_copied, sources = places(found, cache.shape[3], room)
    of_tile = found.chunk_of_token.reshape(tiles, -1)[:, 0]
    own = jnp.minimum(first[of_tile][:, None] + jnp.arange(pages, dtype=jnp.int32)[None], room - 1)
    here = is_copied[found.chunk_of_token]
    return Copies(
        copied(cache, layer, sources, head_dim), own,
        jnp.where(here, positions, ELSEWHERE.value), jnp.where(here, ELSEWHERE.value, positions),
    )  # fmt: skip


def places(found: Chunks, block_size: int, room: int) -> tuple[Array, Array, Array]:
    """Per run, the first page of its chunk's copy and whether the chunk is copied; per page, the
    block it copies, or -1."""
    pages = found.tables.shape[1]
    needed = jnp.where(found.queries >= LONG, -(-found.keys // block_size), 0)
    needed = jnp.minimum(needed, pages)
    stop = jnp.cumsum(needed)
    first, is_copied = stop - needed, (needed > 0) & (stop <= room)
    page = jnp.arange(room, dtype=jnp.int32)
    # Not by bisection: a loop would split the CUDA graph.
    owner = jnp.searchsorted(stop, page, side="right", method="compare_all")
    owner = jnp.minimum(owner, stop.size - 1)
    is_used = is_copied[owner] & (page < stop[owner])
    blocks = found.tables[owner, jnp.clip(page - first[owner], 0, pages - 1)]
    return first, is_copied, jnp.where(is_used, blocks, -1)


def pages_of_copies(cache: Array, tables: Array, positions: Array, head_dim: int) -> int:
    """Pages to allocate for copies; 0 if no chunk of the step can be long."""
    block_size, pages = cache.shape[3], tables.shape[1]
    page_bytes = (
        2 * block_size * kv_heads_of(cache, head_dim) * head_dim * jnp.bfloat16.dtype.itemsize
    )
    wanted = max(pages, PER_TOKEN * positions.size // block_size)
    most = positions.size // LONG * pages
    return min(wanted, most, MOST_BYTES // page_bytes)


def copied(cache: Array, layer: int | Array, sources: Int[Array, " pages"], head_dim: int) -> Array:
    """A one-layer cache of these blocks, dequantized; a page of -1 is not written."""
    kv_heads, block_size = kv_heads_of(cache, head_dim), cache.shape[3]
    best = table("prefill_attention")["copies"]
    constants = {
        **strides(cache, head_dim).constants(),
        "BLOCK_SIZE": block_size,
        "PAGES": sources.size,
        "KV_HEADS": kv_heads,
        "HEAD_DIM": head_dim,
        "PADDED_DIM": next_power_of_two(max(head_dim, 2 * SMALLEST_TILE)),
        "TOKENS": best["tokens"],
        "CODES": codes_of(cache.dtype),
    }
    programs = 2 * kv_heads * -(-sources.size * block_size // best["tokens"])
    shape = cache_shape(1, sources.size, block_size, kv_heads, head_dim)
    (made,) = call_kernel(
        copy_heads, cache, as_scalar(layer), sources,
        out=[jax.ShapeDtypeStruct(shape, jnp.bfloat16)],
        launch=Launch((programs,), constants, best["warps"], num_stages=1),
    )  # fmt: skip
    return made
