"""Random arrays of a case, made where they are used, and the calls that are measured on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jengine.assembly.device_defaults import SHORTEST_TILE
from jengine.bench.gpu.cases import AttentionCase
from pallas_kernels.choice import missing_for_triton
from pallas_kernels.decode_attention import decode_attention
from pallas_kernels.layout import cache_shape
from pallas_kernels.prefill_attention import prefill_attention, tokens_of_tile


class Attention(NamedTuple):
    """A case's arrays; each layer has separate keys and values."""

    q: Array
    cache: Array
    tables: Array
    starts: Array
    lengths: Array  # or positions, where there is more than one new token
    layers: int


def attention_arrays(case: AttentionCase, layer_bytes: int, seed: int = 0) -> Attention:
    """Pages in random order; as many layers as the bytes allow, two at least."""
    pages = -(-case.context // case.block_size)
    layers = int(np.clip(layer_bytes // case.cache_bytes, 2, 16))
    rng = np.random.default_rng(seed)
    blocks = rng.permutation(case.rows * pages).astype(np.int32).reshape(case.rows, pages)
    shape = cache_shape(layers, case.rows * pages, case.block_size, case.kv_heads, case.head_dim)
    cache = random_normal(shape, case.dtype, seed)
    heads = case.kv_heads * case.group
    if case.new_tokens == 1:
        q = random_normal((case.rows, heads, case.head_dim), "float32", seed + 1)
        room = -(-case.longest // case.block_size)
        blocks = np.pad(blocks, ((0, 0), (0, max(room - pages, 0))))
        lengths = np.full(case.rows, case.context, np.int32)
        starts = np.zeros(case.rows, np.int32)
        return Attention(
            q, cache, jnp.asarray(blocks), jnp.asarray(starts), jnp.asarray(lengths), layers
        )
    tile = tile_of(case)
    tiles = -(-case.new_tokens // tile)
    positions = np.full((case.rows, tiles * tile), -1, np.int32)
    positions[:, : case.new_tokens] = np.arange(case.context - case.new_tokens, case.context)
    tables, starts = np.repeat(blocks, tiles, axis=0), np.zeros(case.rows * tiles, np.int32)
    q = random_normal((positions.size, heads, case.head_dim), "float32", seed + 1)
    flat = jnp.asarray(positions.reshape(-1))
    return Attention(q, cache, jnp.asarray(tables), jnp.asarray(starts), flat, layers)


def tile_of(case: AttentionCase) -> int:
    """Tokens of a tile in an engine on a GPU; 1 in decode attention."""
    return 1 if case.new_tokens == 1 else max(tokens_of_tile(case.group), SHORTEST_TILE)


def random_normal(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    """Normal random numbers, made on the device layer by layer."""

    @jax.jit
    def make(key: Array) -> Array:
        if len(shape) < 4:
            return jax.random.normal(key, shape, jnp.float32).astype(dtype)
        keys = jax.random.split(key, shape[0])
        return jax.lax.map(lambda one: jax.random.normal(one, shape[1:], jnp.dtype(dtype)), keys)

    return make(jax.random.key(seed))


def attend(case: AttentionCase, implementation: str, **options: Any) -> Callable[..., Any]:
    """The operation of a case: (q, cache, layer, tables, starts, lengths) -> mixed values."""
    operation = decode_attention if case.new_tokens == 1 else prefill_attention
    return partial(operation, head_dim=case.head_dim, implementation=implementation, **options)


def attention_program(
    case: AttentionCase, layers: int, calls: int, implementation: str
) -> Callable[..., Array]:
    """Calls layer after layer, each on the result of the call before."""
    run = attend(case, implementation)

    @jax.jit
    def program(q: Array, cache: Array, tables: Array, starts: Array, lengths: Array) -> Array:
        for call in range(calls):
            q = run(q, cache, call % layers, tables, starts, lengths)
        return q

    return program


def implementation_here() -> str:
    """Triton where it is installed, on GPUs and in the interpreter; else XLA."""
    return "xla" if missing_for_triton() else "triton"
