"""Stage: the speed of each kernel, and its share of the device's ceilings.

Bytes count the keys, values and logits that must be read once; operations count causal attention.
Rates are computed from these, not from what a kernel really does.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jengine.bench.gpu.case_inputs import (
    attention_arrays,
    attention_program,
    implementation_here,
    random_normal,
)
from jengine.bench.gpu.cases import AttentionCase, SamplingCase, Sizes, sizes
from jengine.bench.gpu.clock import Seconds, seconds_of
from jengine.bench.gpu.part import StageResult, run_stage
from jengine.sampling import SamplingFeatures, SamplingInput, sample
from pallas_kernels.cache_write import rotate_and_write
from pallas_kernels.layout import cache_shape
from pallas_kernels.token_sampling import sample_tokens

ENGINE = "the engine's sampler"


def measure(part: StageResult, args: argparse.Namespace) -> None:
    """One line per case."""
    chosen, implementation = sizes(dry_run=args.dry_run), implementation_here()
    if implementation == "xla":
        part.note("triton is not installed: these are the plain XLA implementations")
    for case in part.in_time(chosen.decode + chosen.prefill):
        decodes = case.new_tokens == 1
        name = "decode attention" if decodes else "prefill attention"
        with part.attempt(name, case):
            took = time_attention(case, chosen, implementation)
            reached = (
                rates(took, moved=case.cache_bytes)
                if decodes
                else rates(took, operations=case.operations)
            )
            part.add(
                what=name, case=str(case), implementation=implementation, moved=case.cache_bytes,
                operations=case.operations, **reached,
            )  # fmt: skip
    for case in part.in_time(chosen.sampling):
        for name in (implementation, ENGINE):
            with part.attempt(f"sampling by {name}", case):
                took = time_sampling(case, chosen, name)
                reached = rates(took, moved=case.rows * case.vocab * 4)
                part.add(what="sampling", case=str(case), implementation=name, **reached)
    for tokens in part.in_time(chosen.written_tokens):
        with part.attempt("rotate and write", tokens):
            took, moved = time_write(tokens, chosen, implementation)
            reached = rates(took, moved=moved)
            part.add(
                what="rotate and write", case=f"{tokens} tokens", implementation=implementation,
                **reached,
            )  # fmt: skip


def rates(took: Seconds, *, moved: int = 0, operations: int = 0) -> dict[str, Any]:
    """Microseconds, with GB/s or TFLOP/s."""
    line: dict[str, Any] = took.as_microseconds()
    if moved:
        line["gb_s"] = round(moved / took.best / 1e9, 1)
    if operations:
        line["tflop_s"] = round(operations / took.best / 1e12, 2)
    return line


def timed(
    chosen: Sizes, program: Callable[..., Any], *arrays: Any, profiled: bool = True
) -> Seconds:
    """Time a program that makes the configured number of calls."""
    return seconds_of(
        program, *arrays, repeats=chosen.repeats, calls=chosen.calls, profiled=profiled
    )


def time_attention(case: AttentionCase, chosen: Sizes, implementation: str) -> Seconds:
    """Time attention over different layers in turn, so that L2 hits are excluded."""
    arrays = attention_arrays(case, chosen.layer_bytes)
    program = attention_program(case, arrays.layers, chosen.calls, implementation)
    return timed(chosen, program, *arrays[:-1])


def time_sampling(case: SamplingCase, chosen: Sizes, implementation: str) -> Seconds:
    """Time the sampling kernels, or the engine's XLA sampler, on the same inputs."""
    temperature, top_k, top_p, min_p = (
        jnp.full(case.rows, value, kind)
        for value, kind in zip(
            case.settings, (jnp.float32, jnp.int32, jnp.float32, jnp.float32), strict=True
        )
    )
    keys = jnp.asarray(np.random.default_rng(0).integers(0, 2**32, (case.rows, 2), np.uint32))
    logits = random_normal((case.rows, case.vocab), "float32", 0) * 3

    draw = engine_sampler(case, keys) if implementation == ENGINE else partial(
        sample_tokens, keys=keys, temperature=temperature, top_k=top_k, top_p=top_p,
        min_p=min_p, implementation=implementation,
    )  # fmt: skip
    return timed(chosen, repeated(draw, chosen.calls), logits)


def engine_sampler(case: SamplingCase, seeds: Array) -> Callable[[Array], Array]:
    """The engine's sampler: logits to tokens."""
    temperature, top_k, top_p, min_p = case.settings
    row, count = jnp.zeros(case.rows), jnp.zeros(case.rows, jnp.int32)
    inputs = SamplingInput(
        rows=jnp.arange(case.rows, dtype=jnp.int32), positions=count, temperature=row + temperature,
        top_k=count + top_k, top_p=row + top_p, min_p=row + min_p, seed=seeds, adjusted=count,
        beyond_mask=count, processors=count, repetition=row + 1, presence=row, frequency=row,
        prompt_length=count,
        min_position=count,
    )  # fmt: skip
    features = SamplingFeatures(random=temperature > 0)

    def draw(logits: Array) -> Array:
        base = jnp.zeros(2, jnp.uint32)
        return sample(logits, None, inputs, features=features, key_data=base)[0].tokens

    return draw


def repeated(draw: Callable[[Array], Array], calls: int) -> Callable[[Array], Array]:
    """A chain of dependent calls, each perturbing one logit for the next."""

    @jax.jit
    def program(logits: Array) -> Array:
        tokens = draw(logits)
        for _ in range(calls - 1):
            logits = logits.at[0, 0].set(tokens[0].astype(jnp.float32) * 1e-9)
            tokens = draw(logits)
        return tokens

    return program


def time_write(tokens: int, chosen: Sizes, implementation: str) -> tuple[Seconds, int]:
    """Time rotary embedding and cache writes; also returns bytes moved."""
    case = chosen.decode[0]
    blocks = -(-tokens // case.block_size)
    shape = cache_shape(2, blocks, case.block_size, case.kv_heads, case.head_dim)
    cache = random_normal(shape, case.dtype, 0)
    qkv = random_normal((tokens, case.kv_heads * (case.group + 2), case.head_dim), "float32", 1)
    qkv = qkv.reshape(tokens, case.kv_heads, case.group + 2, case.head_dim)
    angles = random_normal((tokens, case.head_dim // 2), "float32", 2)
    slots = jnp.asarray(np.random.default_rng(0).permutation(tokens).astype(np.int32))

    @jax.jit
    def program(cache: Array, qkv: Array) -> tuple[Array, Array]:
        turns = jnp.cos(angles), jnp.sin(angles)
        q = qkv
        for call in range(chosen.calls):
            q, cache = rotate_and_write(
                cache, call % 2, qkv, slots, rotation=turns, implementation=implementation
            )
            qkv = qkv.at[0, 0, 0, 0].set(q[0, 0, 0])  # the next call waits for this one
        return q, cache

    moved = qkv.nbytes * (2 * case.group + 2) // (case.group + 2)
    moved += 2 * tokens * case.kv_heads * case.head_dim * cache.dtype.itemsize
    return timed(chosen, program, cache, qkv), moved


if __name__ == "__main__":
    run_stage(measure)
