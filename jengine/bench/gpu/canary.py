"""Stage: a quick check, in seconds, that each kernel runs here and is correct.

Each kernel once, a cache of more than 2^31 elements, and a layer of experts. What fails here fails
everywhere: look at it first.
"""

from __future__ import annotations

import argparse
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jengine.bench.gpu.case_inputs import implementation_here
from jengine.bench.gpu.cases import sampling_cases, sizes
from jengine.bench.gpu.numerics import (
    Check,
    add,
    attention_error,
    relative_error,
    sampling_differences,
    write_error,
)
from jengine.bench.gpu.part import StageResult, run_stage
from pallas_kernels.cache_write import write_cache
from pallas_kernels.decode_attention import decode_attention
from pallas_kernels.grouped_matmul import combine_rows, multiply_tokens, sort_by_group
from pallas_kernels.layout import cache_shape

KV_HEADS, BLOCK_SIZE = 8, 16
LENGTHS = 5, 40


def measure(part: StageResult, args: argparse.Namespace) -> None:
    """One line per check, with its outcome in `right`."""
    chosen, implementation = sizes(dry_run=args.dry_run), implementation_here()
    dtype = "float32" if args.dry_run else "bfloat16"
    head_dim = 16 if args.dry_run else 128
    with part.attempt("program", "a sum"):
        total = int(jax.jit(lambda x: x.sum())(jnp.arange(1000)))
        part.add(what="program", case="a sum", right=total == 499_500)
    with part.attempt("rotate and write", dtype):
        add(part, "rotate and write", dtype, write_error(dtype, implementation), dtype)
    for new_tokens, codes in itertools.product((1, 9), ("", "fp8", "int8")):
        dtype_of = "bfloat16" if codes else dtype
        check = Check(
            2, 40, new_tokens, kv_heads=2, group=2, head_dim=head_dim, dtype=dtype_of, codes=codes
        )
        with part.attempt("attention", check):
            add(part, "attention", str(check), attention_error(check, LENGTHS, implementation),
                dtype_of)  # fmt: skip
    for case in sampling_cases((2,), 70 if args.dry_run else 32_000)[1::2]:
        with part.attempt("sampling", case):
            part.add(what="sampling", case=str(case), **sampling_differences(case, implementation))
    with part.attempt("experts", dtype):
        add(part, "experts", dtype, experts_error(dtype, implementation), dtype)
    with part.attempt("large cache", chosen.cache_elements):
        error = large_cache_error(chosen.cache_elements, head_dim, dtype, implementation)
        add(part, "large cache", f"{chosen.cache_elements:,} elements", error, dtype)


def experts_error(dtype: str, implementation: str) -> float:
    """Error of a MoE layer (2 of 8 experts per token) against numpy."""
    rng = np.random.default_rng(0)
    tokens, experts, hidden, inner = 20, 8, 64, 48
    x = rng.normal(size=(tokens, hidden))
    first = rng.normal(size=(experts, hidden, 2 * inner)) / np.sqrt(hidden)
    second = rng.normal(size=(experts, inner, hidden)) / np.sqrt(inner)
    picked = np.argsort(rng.random((tokens, experts)), axis=1)[:, :2].astype(np.int32)
    scales = rng.random((tokens, 2))
    given = [jnp.asarray(one).astype(dtype) for one in (x, first, second)]
    groups = sort_by_group(jnp.asarray(picked.ravel()), experts, implementation=implementation)
    inside = multiply_tokens(
        given[0], given[1], groups, activation="silu", implementation=implementation
    )
    found = combine_rows(
        inside, given[2], groups, jnp.asarray(scales, jnp.float32), implementation=implementation
    )
    x, first, second = (np.asarray(one.astype(jnp.float32), np.float64) for one in given)
    expected = np.zeros((tokens, hidden))
    for token in range(tokens):
        for expert, scale in zip(picked[token], scales[token], strict=True):
            made = x[token] @ first[expert]
            gate, up = made[::2], made[1::2]
            expected[token] += scale * ((gate / (1 + np.exp(-gate)) * up) @ second[expert])
    return relative_error(np.asarray(found), expected)


def large_cache_error(elements: int, head_dim: int, dtype: str, implementation: str) -> float:
    """Difference between the last blocks of a large cache and the same tokens in a small one."""
    layers = 2
    width = KV_HEADS * head_dim
    blocks = max(-(-elements // (layers * 2 * BLOCK_SIZE * width)), 4)
    small = attended_at_the_end(4, layers, head_dim, dtype, implementation)
    return relative_error(
        attended_at_the_end(blocks, layers, head_dim, dtype, implementation), small
    )


def attended_at_the_end(
    blocks: int, layers: int, head_dim: int, dtype: str, implementation: str
) -> np.ndarray:
    """Write 40 tokens into the last three blocks of the last layer, and attend to them."""
    rng, tokens, pages = np.random.default_rng(2), 40, 3
    shape = cache_shape(layers, blocks, BLOCK_SIZE, KV_HEADS, head_dim)
    cache = jax.jit(lambda: jnp.zeros(shape, dtype))()
    k, v = rng.normal(size=(2, tokens, KV_HEADS, head_dim)).astype(np.float32)
    q = rng.normal(size=(1, KV_HEADS * 2, head_dim)).astype(np.float32)
    slots = (blocks - pages) * BLOCK_SIZE + np.arange(tokens, dtype=np.int32)
    table = np.arange(blocks - pages, blocks, dtype=np.int32)[None]

    @partial(jax.jit, donate_argnums=0)
    def run(cache: jax.Array) -> tuple[jax.Array, jax.Array]:
        written = write_cache(
            cache, layers - 1, jnp.asarray(k), jnp.asarray(v), jnp.asarray(slots), implementation
        )
        found = decode_attention(
            jnp.asarray(q), written, layers - 1, jnp.asarray(table), jnp.zeros(1, jnp.int32),
            jnp.full(1, tokens, jnp.int32), head_dim=head_dim, implementation=implementation,
        )  # fmt: skip
        return found, written  # into the memory of the donated one

    return np.asarray(run(cache)[0])


if __name__ == "__main__":
    run_stage(measure)
