"""Random inputs of benchmark cases, generated on the device, and the measured calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jengine.assembly.sizes.device_defaults import JOINED_TILE, SHORTEST_TILE
from jengine.bench.gpu.cases import AttentionCase
from jengine.runner.step.attention_backend import CODES
from pallas_kernels.choice import missing_for_triton
from pallas_kernels.decode_attention import decode_attention
from pallas_kernels.layout import cache_shape
from pallas_kernels.prefill_attention import prefill_attention, tokens_of_tile


class CaseInputs(NamedTuple):
    """A case's inputs; each layer has its own keys and values."""

    q: Array
    cache: Array
    tables: Array
    starts: Array
    lengths: Array  # or positions, where there is more than one new token
    runs: Array  # first tiles of what prefill attention joins, see `prefill_attention`
    layers: int


def attention_arrays(case: AttentionCase, layer_bytes: int, seed: int = 0) -> CaseInputs:
    """Inputs with randomly ordered pages; at least two layers, as many as the memory budget
    allows."""
    pages = -(-case.context // case.block_size)
    layers = int(np.clip(layer_bytes // case.cache_bytes, 2, 16))
    rng = np.random.default_rng(seed)
    blocks = rng.permutation(case.rows * pages).astype(np.int32).reshape(case.rows, pages)
    blocks[:, : case.shared // case.block_size] = blocks[0, : case.shared // case.block_size]
    cache = random_cache(case, layers, case.rows * pages, seed)
    heads = case.kv_heads * case.group
    if case.new_tokens == 1:
        q = random_normal((case.rows, heads, case.head_dim), "float32", seed + 1)
        room = -(-case.longest // case.block_size)
        blocks = np.pad(blocks, ((0, 0), (0, max(room - pages, 0))))
        lengths = jnp.full(case.rows, case.context, jnp.int32)
        starts, no_runs = jnp.zeros(case.rows, jnp.int32), jnp.zeros(0, jnp.int32)
        return CaseInputs(q, cache, jnp.asarray(blocks), starts, lengths, no_runs, layers)
    tile = tile_of(case)
    tiles = -(-case.new_tokens // tile)
    positions = np.full((case.rows, tiles * tile), -1, np.int32)
    positions[:, : case.new_tokens] = np.arange(case.context - case.new_tokens, case.context)
    tables, starts = np.repeat(blocks, tiles, axis=0), np.zeros(case.rows * tiles, np.int32)
    q = random_normal((positions.size, heads, case.head_dim), "float32", seed + 1)
    flat = jnp.asarray(positions.reshape(-1))
    runs = runs_of([tiles] * case.rows, joined_tiles(case))
    return CaseInputs(q, cache, jnp.asarray(tables), jnp.asarray(starts), flat, runs, layers)


def tile_of(case: AttentionCase) -> int:
    """Tokens per query tile, as in an engine on a GPU; 1 for decode."""
    return 1 if case.new_tokens == 1 else JOINED_TILE


def joined_tiles(case: AttentionCase) -> int:
    """Tiles of one chunk that prefill attention processes together."""
    return max(tokens_of_tile(case.group), SHORTEST_TILE) // JOINED_TILE


def runs_of(tiles: Sequence[int], joined: int) -> Array:
    """First tile of each run, and the number of runs, for chunks with these tile counts."""
    ends = np.cumsum(tiles)
    firsts = [range(end - count, end, joined) for end, count in zip(ends, tiles, strict=True)]
    return jnp.asarray([*itertools.chain(*firsts), ends[-1]], jnp.int32)


def random_cache(case: AttentionCase, layers: int, blocks: int, seed: int) -> Array:
    """Random keys and values; of codes random bytes, of which none is NaN, as a code or a scale."""
    kind = CODES[case.codes] if case.codes else jnp.dtype(case.dtype)
    shape = cache_shape(
        layers, blocks, case.block_size, case.kv_heads, case.head_dim, kind
    )  # fmt: skip
    if not case.codes:
        return random_normal(shape, case.dtype, seed)

    @jax.jit
    def make(keys: Array) -> Array:
        made = jax.lax.map(lambda key: jax.random.bits(key, shape[1:], jnp.uint8) & 0x37, keys)
        return made.astype(kind)

    return make(jax.random.split(jax.random.key(seed), layers))


def random_normal(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    """Normal random numbers, generated on the device layer by layer."""

    @jax.jit
    def make(key: Array) -> Array:
        if len(shape) < 4:
            return jax.random.normal(key, shape, jnp.float32).astype(dtype)
        keys = jax.random.split(key, shape[0])
        return jax.lax.map(lambda one: jax.random.normal(one, shape[1:], jnp.dtype(dtype)), keys)

    return make(jax.random.key(seed))


def attend(case: AttentionCase, implementation: str, **options: Any) -> Callable[..., Any]:
    """The case's attention as engines call it: (q, cache, layer, tables, starts, lengths, runs) ->
    output."""
    options |= {"head_dim": case.head_dim, "implementation": implementation}

    def run(*arrays: Array | int) -> Array:
        *given, runs = arrays
        if case.new_tokens == 1:
            return decode_attention(*given, reads_together=True, **options)
        return prefill_attention(*given, runs=runs, joined=joined_tiles(case), **options)

    return run


def attention_program(
    case: AttentionCase, layers: int, calls: int, implementation: str
) -> Callable[..., Array]:
    """Attention layer after layer, each on the previous output."""
    run = attend(case, implementation)

    @jax.jit
    def program(q: Array, cache: Array, *others: Array) -> Array:
        for call in range(calls):
            q = run(q, cache, call % layers, *others)
        return q

    return program


def implementation_here() -> str:
    """Triton where installed, on GPUs and in the interpreter; else XLA."""
    return "xla" if missing_for_triton() else "triton"
