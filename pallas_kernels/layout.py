"""The layout of keys and values in the paged KV cache; no other file depends on it.

A cache group is one array [layers, 2, blocks, block_size, kv_heads * head_dim]; keys are plane 0,
values plane 1. The kv heads of a token are contiguous. An array of uint16 holds the bits of
bfloat16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Int, Shaped

KEYS, VALUES = PLANES = (0, 1)


# XLA on the CPU would convert a whole array of bfloat16 for every write into a part of it.
BFLOAT16_BITS = np.dtype(np.uint16)


def held_dtype(cache: Array) -> np.dtype:
    """The type of the keys and values that an array holds."""
    return jnp.dtype(jnp.bfloat16) if cache.dtype == BFLOAT16_BITS else cache.dtype


def cache_shape(
    layers: int, blocks: int, block_size: int, kv_heads: int, head_dim: int
) -> tuple[int, ...]:
    """Shape of a cache group's array."""
    return (layers, 2, blocks, block_size, kv_heads * head_dim)


class Strides(NamedTuple):
    """Distance, in elements, from one layer, plane, block, token or kv head to the next."""

    layer: int
    plane: int
    block: int
    token: int
    head: int

    def constants(self) -> dict[str, int]:
        """As compile-time constants of a kernel: LAYER_STRIDE, PLANE_STRIDE, ..."""
        return {f"{name.upper()}_STRIDE": value for name, value in self._asdict().items()}


def strides(shape: tuple[int, ...], head_dim: int) -> Strides:
    """The strides of a cache array, for kernels that compute addresses. head_dim is contiguous."""
    _, planes, blocks, block_size, width = shape
    block = block_size * width
    return Strides(planes * blocks * block, blocks * block, block, width, head_dim)


def read_heads(
    cache: Shaped[Array, "layers 2 blocks block_size width"],
    layer: int | Int[Array, ""],
    blocks: Int[Array, "batch pages"],
    head_dim: int,
    seen: Shaped[Array, "batch tokens"],
) -> tuple[Float[Array, "batch kv_heads tokens dim"], Float[Array, "batch kv_heads tokens dim"]]:
    """Keys and values of whole blocks by head; zero where `seen`, a bool mask, is false."""
    _, _, num_blocks, block_size, width = cache.shape
    # Gathers of rows out of a flat view compile to far less than indexing five dimensions.
    flat = cache.reshape(-1, block_size * width)

    def plane(which: int) -> Array:
        found = flat.at[blocks + plane_start(layer, which, num_blocks)].get(
            mode="promise_in_bounds"
        )
        heads = found.reshape(*seen.shape, -1, head_dim).swapaxes(1, 2)
        if cache.dtype == BFLOAT16_BITS:
            heads = lax.bitcast_convert_type(heads, jnp.bfloat16)
        # The mask comes last, for keys too: XLA on the CPU would fold a swap of axes into the
        # matmul that follows, and then compute that in float32.
        return jnp.where(jnp.broadcast_to(seen[:, None, :, None], heads.shape), heads, 0)

    return plane(KEYS), plane(VALUES)


def pad_pages(tables: Int[Array, "rows pages"], multiple: int) -> Int[Array, "rows padded"]:
    """Tables padded with the null block to a multiple of `multiple` pages."""
    missing = -tables.shape[1] % multiple
    return jnp.pad(tables, ((0, 0), (0, missing)))


def write_slots(
    cache: Shaped[Array, "layers 2 blocks block_size width"],
    layer: int | Int[Array, ""],
    k: Float[Array, "tokens width"],
    v: Float[Array, "tokens width"],
    slots: Int[Array, " tokens"],
) -> Shaped[Array, "layers 2 blocks block_size width"]:
    """Store keys and values at token slots in place; slots outside a plane are skipped."""
    _, _, num_blocks, block_size, width = cache.shape
    plane_slots = num_blocks * block_size
    starts = [plane_start(layer, plane, plane_slots) for plane in PLANES]
    inside = (slots >= 0) & (slots < plane_slots)  # XLA would count -1 from the end
    index = jnp.concatenate([
        jnp.where(inside, slots + start, jnp.iinfo(slots.dtype).max)
        for start in starts
    ])  # fmt: skip
    flat = cache.reshape(-1, width)
    both = jnp.concatenate([k, v]).astype(held_dtype(cache))
    if cache.dtype == BFLOAT16_BITS:
        both = lax.bitcast_convert_type(both, BFLOAT16_BITS)
    return flat.at[index].set(both, mode="drop", unique_indices=True).reshape(cache.shape)


def plane_start(layer: int | Array, plane: int, size: int) -> int | Array:
    """First entry of a layer's keys or values in a flat view whose planes hold `size` entries."""
    return (layer * len(PLANES) + plane) * size
