"""The layout of keys and values in the paged KV cache; no other file depends on it.

A cache group is one array [layers, 2, blocks, block_size, kv_heads * head_dim]; keys are plane 0,
values plane 1. The kv heads of a token are contiguous. The array of latent attention has no planes,
[layers, blocks, block_size, rank + rope]. An array of uint16 holds the bits of bfloat16. In an
array of bytes each head of a token has a scale of its own, in bfloat16 after its codes: int8 arrays
hold int8, uint8 arrays the bits of FP8 (E4M3).

A scale is made as a token is written, so it needs no calibration and depends on nothing else.
Attention reads what the codes stand for in float32, but for Triton kernels, where codes are exact
in bfloat16, and scores and weights are multiplied by scales. Prefix hashes know what a cache
stores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int, Shaped

KEYS, VALUES = PLANES = (0, 1)


# XLA on the CPU would convert a whole array of bfloat16 for every write into a part of it.
BFLOAT16_BITS = np.dtype(np.uint16)
INT8, FP8_BITS = np.dtype(np.int8), np.dtype(np.uint8)
SCALE_BYTES = 2
# The largest number that a scale is made for.
LARGEST = {INT8: 127.0, FP8_BITS: 448.0}
# A scale of zeros would give 0 / 0.
SMALLEST_SCALE = 1e-12


def held_dtype(cache: Array) -> np.dtype:
    """The type of the keys and values that are read from an array."""
    if has_scales(cache.dtype):
        return jnp.dtype(jnp.float32)
    return jnp.dtype(jnp.bfloat16) if cache.dtype == BFLOAT16_BITS else cache.dtype


def has_scales(dtype: DTypeLike) -> bool:
    """Whether heads are stored in this type as codes of one byte with a scale."""
    return jnp.dtype(dtype) in LARGEST


def head_width(head_dim: int, dtype: DTypeLike) -> int:
    """Elements of one head of a token."""
    return head_dim + (SCALE_BYTES if has_scales(dtype) else 0)


def kv_heads_of(cache: Array, head_dim: int) -> int:
    """The number of KV heads in an array."""
    return cache.shape[-1] // head_width(head_dim, cache.dtype)


def cache_shape(
    layers: int, blocks: int, block_size: int, kv_heads: int, head_dim: int,
    dtype: DTypeLike = np.float32,
) -> tuple[int, ...]:  # fmt: skip
    """Shape of a cache group's array of this type."""
    return (layers, 2, blocks, block_size, kv_heads * head_width(head_dim, dtype))


def entries_shape(layers: int, blocks: int, block_size: int, width: int) -> tuple[int, ...]:
    """Shape of the array of latent attention. XLA would copy an array with a plane of its own: it
    is free to order a dimension of size one as it likes."""
    return (layers, blocks, block_size, width)


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


def strides(cache: Array, head_dim: int) -> Strides:
    """The strides of a cache array, for kernels that compute addresses. head_dim is contiguous."""
    _, planes, blocks, block_size, width = cache.shape
    block, head = block_size * width, head_width(head_dim, cache.dtype)
    return Strides(planes * blocks * block, blocks * block, block, width, head)


def codes_of(dtype: DTypeLike) -> str:
    """What stands in arrays of this type for numbers, as kernels call it."""
    return {INT8: "int8", FP8_BITS: "fp8"}.get(jnp.dtype(dtype), "none")


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
        heads = found.reshape(*seen.shape, -1, head_width(head_dim, cache.dtype)).swapaxes(1, 2)
        if has_scales(cache.dtype):
            heads = decoded(heads)
        if cache.dtype == BFLOAT16_BITS:
            heads = lax.bitcast_convert_type(heads, jnp.bfloat16)
        # The mask comes last, for keys too: XLA on the CPU would fold a swap of axes into the
        # matmul that follows, and then compute that in float32.
        return jnp.where(jnp.broadcast_to(seen[:, None, :, None], heads.shape), heads, 0)

    return plane(KEYS), plane(VALUES)


def read_entries(
    cache: Shaped[Array, "layers blocks block_size width"],
    layer: int | Int[Array, ""],
    blocks: Int[Array, "batch pages"],
    seen: Shaped[Array, "batch tokens"],
) -> Float[Array, "batch tokens width"]:
    """The entries of latent attention in whole blocks; zero where `seen`, a bool mask, is false."""
    _, num_blocks, block_size, width = cache.shape
    flat = cache.reshape(-1, block_size * width)
    found = flat.at[blocks + layer * num_blocks].get(mode="promise_in_bounds")
    entries = found.reshape(*seen.shape, width)
    if cache.dtype == BFLOAT16_BITS:
        entries = lax.bitcast_convert_type(entries, jnp.bfloat16)
    return jnp.where(jnp.broadcast_to(seen[..., None], entries.shape), entries, 0)


def write_entries(
    cache: Shaped[Array, "layers blocks block_size width"],
    layer: int | Int[Array, ""],
    entries: Float[Array, "tokens width"],
    slots: Int[Array, " tokens"],
) -> Shaped[Array, "layers blocks block_size width"]:
    """Store the entries of latent attention at token slots in place; slots outside are skipped."""
    _, num_blocks, block_size, width = cache.shape
    size = num_blocks * block_size
    inside = (slots >= 0) & (slots < size)
    index = jnp.where(inside, slots + layer * size, jnp.iinfo(slots.dtype).max)
    stored = entries.astype(held_dtype(cache))
    if cache.dtype == BFLOAT16_BITS:
        stored = lax.bitcast_convert_type(stored, BFLOAT16_BITS)
    flat = cache.reshape(-1, width)
    return flat.at[index].set(stored, mode="drop", unique_indices=True).reshape(cache.shape)


def pad_pages(tables: Int[Array, "rows pages"], multiple: int) -> Int[Array, "rows padded"]:
    """Tables padded with the null block to a multiple of `multiple` pages."""
    missing = -tables.shape[1] % multiple
    return jnp.pad(tables, ((0, 0), (0, missing)))


def write_slots(
    cache: Shaped[Array, "layers 2 blocks block_size width"],
    layer: int | Int[Array, ""],
    k: Float[Array, "tokens kv_heads dim"],
    v: Float[Array, "tokens kv_heads dim"],
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
    both = jnp.concatenate([k, v])
    coded = has_scales(cache.dtype)
    both = encoded(both, cache.dtype) if coded else both.astype(held_dtype(cache))
    if cache.dtype == BFLOAT16_BITS:
        both = lax.bitcast_convert_type(both, BFLOAT16_BITS)
    both = both.reshape(-1, width)
    return flat.at[index].set(both, mode="drop", unique_indices=True).reshape(cache.shape)


def plane_start(layer: int | Array, plane: int, size: int) -> int | Array:
    """First entry of a layer's keys or values in a flat view whose planes hold `size` entries."""
    return (layer * len(PLANES) + plane) * size


def encoded(
    heads: Float[Array, "*tokens dim"], dtype: DTypeLike
) -> Shaped[Array, "*tokens dim_and_scale"]:
    """Heads as codes, each with the smallest scale in bfloat16 by which no number is cut off."""
    kind = jnp.dtype(dtype)
    heads = heads.astype(jnp.float32)
    highest = jnp.max(jnp.abs(heads), axis=-1, keepdims=True)
    exact = jnp.maximum(highest / LARGEST[kind], SMALLEST_SCALE)
    bits = lax.bitcast_convert_type(exact, jnp.uint32)
    scale_bits = ((bits + 0xFFFF) >> 16).astype(jnp.uint16)  # rounded up
    scale = lax.bitcast_convert_type(scale_bits, jnp.bfloat16).astype(jnp.float32)
    units = heads / scale
    if kind == INT8:
        codes = jnp.round(units).astype(jnp.int8)
    else:
        codes = lax.bitcast_convert_type(units.astype(jnp.float8_e4m3fn), jnp.uint8)
    scales = lax.bitcast_convert_type(scale_bits[..., 0], kind)  # [*tokens, 2], low byte first
    return jnp.concatenate([codes, scales], axis=-1)


def decoded(heads: Shaped[Array, "*tokens dim_and_scale"]) -> Float32[Array, "*tokens dim"]:
    """The inverse: codes times their scales."""
    codes, scales = heads[..., :-SCALE_BYTES], heads[..., -SCALE_BYTES:]
    if heads.dtype == FP8_BITS:
        codes = lax.bitcast_convert_type(codes, jnp.float8_e4m3fn)
    scale = lax.bitcast_convert_type(scales, jnp.bfloat16).astype(jnp.float32)
    return codes.astype(jnp.float32) * scale[..., None]
