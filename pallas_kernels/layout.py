"""Memory layout of the paged KV cache; no other file depends on it.

A cache group is one array [layers, 2, blocks, block_size, kv_heads * head_dim]; keys are plane 0,
values plane 1; the KV heads of a token are contiguous. Latent attention has no planes: [layers,
blocks, block_size, rank + rope]. uint16 arrays hold bfloat16 bits. One-byte arrays are quantized:
int8 arrays hold int8, uint8 arrays FP8 (E4M3). Their last two dimensions are the bytes of a block:
codes [block_size, kv_heads, head_dim], then a bfloat16 scale of each head [kv_heads, block_size].
So codes are aligned to 16 bytes, as asynchronous copies to shared memory require. On several
devices each device's shard of a block has this layout, so their number is part of `stored_as`.

Scales are computed as a token is written, without calibration. XLA and CPU attention dequantize to
float32; Triton kernels multiply codes, exact in bfloat16, and apply scales to scores and softmax
weights, or read bfloat16 copies made for long prompts. Prefix hashes include the cache dtype.
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


# With bfloat16, XLA on the CPU would convert the whole array at every write into it.
BFLOAT16_BITS = np.dtype(np.uint16)
INT8, FP8_BITS = np.dtype(np.int8), np.dtype(np.uint8)
SCALE_BYTES = 2
# The largest code.
LARGEST = {INT8: 127.0, FP8_BITS: 448.0}
# Added to float32 bits before truncation to bfloat16: rounds up, unless at most 8 ulps (of float32)
# above a bfloat16, an error that inexact division on GPUs and in XLA can make. Rounding that up
# would scale a head by half a percent each time it is requantized.
ROUNDING_UP = 0xFFFF - 8
# A scale of zeros would give 0 / 0.
SMALLEST_SCALE = 1e-12


def held_dtype(cache: Array) -> np.dtype:
    """Dtype in which keys and values are read from a cache array."""
    if has_scales(cache.dtype):
        return jnp.dtype(jnp.float32)
    return jnp.dtype(jnp.bfloat16) if cache.dtype == BFLOAT16_BITS else cache.dtype


def has_scales(dtype: DTypeLike) -> bool:
    """Whether this cache dtype is quantized: one-byte codes with a scale per head."""
    return jnp.dtype(dtype) in LARGEST


def head_width(head_dim: int, dtype: DTypeLike) -> int:
    """Array elements per head of a token, scale included; codes and scale are not adjacent."""
    return head_dim + (SCALE_BYTES if has_scales(dtype) else 0)


def kv_heads_of(cache: Array, head_dim: int) -> int:
    return cache.shape[-1] // head_width(head_dim, cache.dtype)


def cache_shape(
    layers: int, blocks: int, block_size: int, kv_heads: int, head_dim: int,
    dtype: DTypeLike = np.float32,
) -> tuple[int, ...]:  # fmt: skip
    return (layers, 2, blocks, block_size, kv_heads * head_width(head_dim, dtype))


def entries_shape(layers: int, blocks: int, block_size: int, width: int) -> tuple[int, ...]:
    """Shape of a latent attention cache.

    It has no plane axis of size one: XLA may order such an axis freely and would copy the array.
    """
    return (layers, blocks, block_size, width)


class Strides(NamedTuple):
    """Elements from one layer, plane, block or token to the next; and to a block's scales."""

    layer: int
    plane: int
    block: int
    token: int
    scales: int

    def constants(self) -> dict[str, int]:
        """Kernel constants LAYER_STRIDE, PLANE_STRIDE, ..., and SCALES."""
        *steps, (_, scales) = self._asdict().items()
        return {**{f"{name.upper()}_STRIDE": value for name, value in steps}, "SCALES": scales}


def strides(cache: Array, head_dim: int) -> Strides:
    """Strides of a cache array; the heads of a token are contiguous."""
    _, planes, blocks, block_size, width = cache.shape
    block, token = block_size * width, kv_heads_of(cache, head_dim) * head_dim
    if has_scales(cache.dtype) and (block_size % 2 or head_dim % 2):
        raise ValueError(
            f"kernels read codes and scales in pairs: expected an even block size and head size, "
            f"given {block_size} and {head_dim}"
        )
    return Strides(planes * blocks * block, blocks * block, block, token, block_size * token)


def codes_of(dtype: DTypeLike) -> str:
    """The kernels' name of this dtype's quantization: "int8", "fp8" or "none"."""
    return {INT8: "int8", FP8_BITS: "fp8"}.get(jnp.dtype(dtype), "none")


def read_heads(
    cache: Shaped[Array, "layers 2 blocks block_size width"],
    layer: int | Int[Array, ""],
    blocks: Int[Array, "batch pages"],
    head_dim: int,
    seen: Shaped[Array, "batch tokens"],
) -> tuple[Float[Array, "batch kv_heads tokens dim"], Float[Array, "batch kv_heads tokens dim"]]:
    """Gather keys and values of whole blocks by head, zeroed where the mask `seen` is false."""
    _, _, num_blocks, block_size, width = cache.shape
    # Gathers of rows out of a flat view compile to far less than indexing five dimensions.
    flat = cache.reshape(-1, block_size * width)

    def plane(which: int) -> Array:
        found = flat.at[blocks + plane_start(layer, which, num_blocks)].get(
            mode="promise_in_bounds"
        )
        heads = heads_of(found, block_size, head_dim)
        heads = heads.reshape(*seen.shape, -1, head_dim).swapaxes(1, 2)
        if cache.dtype == BFLOAT16_BITS:
            heads = lax.bitcast_convert_type(heads, jnp.bfloat16)
        # The mask comes last, for keys too: XLA on the CPU would fold a swap of axes into the
        # matmul that follows, and then compute that in float32.
        return jnp.where(jnp.broadcast_to(seen[:, None, :, None], heads.shape), heads, 0)

    return plane(KEYS), plane(VALUES)


def heads_of(
    blocks: Shaped[Array, "batch pages elements"], block_size: int, head_dim: int
) -> Shaped[Array, "batch pages block_size kv_heads dim"]:
    """The heads of whole blocks, dequantized."""
    of_token = block_size, -1, head_dim
    if not has_scales(blocks.dtype):
        return blocks.reshape(*blocks.shape[:2], *of_token)
    ends = blocks.shape[2] // head_width(head_dim, blocks.dtype) * head_dim
    codes, scales = blocks[..., :ends], blocks[..., ends:]
    scales = scales.reshape(*blocks.shape[:2], -1, block_size, SCALE_BYTES).swapaxes(2, 3)
    return decoded(codes.reshape(*blocks.shape[:2], *of_token), scales)


def read_entries(
    cache: Shaped[Array, "layers blocks block_size width"],
    layer: int | Int[Array, ""],
    blocks: Int[Array, "batch pages"],
    seen: Shaped[Array, "batch tokens"],
) -> Float[Array, "batch tokens width"]:
    """Gather latent attention entries of whole blocks, zeroed where the mask `seen` is false."""
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
    """Write latent attention entries to slots in place; slots outside are skipped."""
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
    """Pad tables with the null block to a multiple of `multiple` pages."""
    missing = -tables.shape[1] % multiple
    return jnp.pad(tables, ((0, 0), (0, missing)))


def write_slots(
    cache: Shaped[Array, "layers 2 blocks block_size width"],
    layer: int | Int[Array, ""],
    k: Float[Array, "tokens kv_heads dim"],
    v: Float[Array, "tokens kv_heads dim"],
    slots: Int[Array, " tokens"],
) -> Shaped[Array, "layers 2 blocks block_size width"]:
    """Write keys and values to slots in place; slots outside a plane are skipped."""
    if has_scales(cache.dtype):
        return _write_codes(cache, layer, jnp.stack([k, v]), slots)
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
    both = both.reshape(-1, width)
    return flat.at[index].set(both, mode="drop", unique_indices=True).reshape(cache.shape)


def _write_codes(
    cache: Shaped[Array, "layers 2 blocks block_size width"],
    layer: int | Array,
    heads: Float[Array, "2 tokens kv_heads dim"],
    slots: Int[Array, " tokens"],
) -> Shaped[Array, "layers 2 blocks block_size width"]:
    """`write_slots` of a quantized cache: a run of codes per token, and a scale per head."""
    _, _, num_blocks, block_size, width = cache.shape
    kv_heads, dim = heads.shape[2:]
    inside = (slots >= 0) & (slots < num_blocks * block_size)
    block = jnp.where(inside, slots // block_size, jnp.iinfo(slots.dtype).max)
    starts = [plane_start(layer, plane, num_blocks) for plane in PLANES]
    blocks = jnp.stack([jnp.where(inside, block + start, block) for start in starts])
    slot = jnp.stack([slots % block_size] * len(PLANES))
    of_head = jnp.arange(kv_heads, dtype=slots.dtype)[None, None] * block_size
    ends = block_size * kv_heads * dim
    codes, scales = encoded(heads, cache.dtype)
    flat = cache.reshape(-1, block_size * width)
    flat = _put_runs(flat, blocks, slot * (kv_heads * dim), codes.reshape(*blocks.shape, -1))
    places = ends + (slot[..., None] + of_head) * SCALE_BYTES
    blocks = jnp.broadcast_to(blocks[..., None], places.shape)
    return _put_runs(flat, blocks, places, scales).reshape(cache.shape)


def _put_runs(
    flat: Shaped[Array, "blocks bytes"], blocks: Int[Array, "*runs"], begins: Int[Array, "*runs"],
    runs: Shaped[Array, "*runs length"],
) -> Shaped[Array, "blocks bytes"]:  # fmt: skip
    """Write runs of bytes into blocks; runs of out-of-range blocks are skipped."""
    where = jnp.stack([blocks.reshape(-1), begins.reshape(-1)], axis=-1)
    return lax.scatter(
        flat, where, runs.reshape(where.shape[0], -1),
        lax.ScatterDimensionNumbers((1,), (0,), (0, 1)),
        unique_indices=True, mode=lax.GatherScatterMode.FILL_OR_DROP,
    )  # fmt: skip


def plane_start(layer: int | Array, plane: int, size: int) -> int | Array:
    """Index of a layer's first key or value in a flat view with `size` entries per plane."""
    return (layer * len(PLANES) + plane) * size


def encoded(
    heads: Float[Array, "*tokens dim"], dtype: DTypeLike
) -> tuple[Shaped[Array, "*tokens dim"], Shaped[Array, "*tokens 2"]]:
    """Codes of heads, and for each the bytes of the smallest bfloat16 scale that clips nothing, low
    byte first."""
    kind = jnp.dtype(dtype)
    heads = heads.astype(jnp.float32)
    highest = jnp.max(jnp.abs(heads), axis=-1, keepdims=True)
    exact = jnp.maximum(highest / LARGEST[kind], SMALLEST_SCALE)
    bits = lax.bitcast_convert_type(exact, jnp.uint32)
    scale_bits = ((bits + ROUNDING_UP) >> 16).astype(jnp.uint16)
    scale = lax.bitcast_convert_type(scale_bits, jnp.bfloat16).astype(jnp.float32)
    units = heads / scale
    if kind == INT8:
        codes = jnp.round(units).astype(jnp.int8)
    else:
        codes = lax.bitcast_convert_type(units.astype(jnp.float8_e4m3fn), jnp.uint8)
    return codes, lax.bitcast_convert_type(scale_bits[..., 0], kind)


def decoded(
    codes: Shaped[Array, "*tokens dim"], scales: Shaped[Array, "*tokens 2"]
) -> Float32[Array, "*tokens dim"]:
    """Dequantize heads: codes times scales."""
    if codes.dtype == FP8_BITS:
        codes = lax.bitcast_convert_type(codes, jnp.float8_e4m3fn)
    scale = lax.bitcast_convert_type(scales, jnp.bfloat16).astype(jnp.float32)
    return codes.astype(jnp.float32) * scale[..., None]
