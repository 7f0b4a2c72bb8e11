"""Sampling on CPUs in one pass over the logits, and its Gumbel noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.cpu.library import ffi_call

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float32, Int32, UInt32


def best_tokens_cpu(logits: Array) -> Array:
    """See `best_tokens`."""
    result = jax.ShapeDtypeStruct(logits.shape[:1], jnp.int32)
    return ffi_call("best_tokens", result)(logits.astype(jnp.float32))


def sample_tokens_cpu(
    logits: Array, keys: Array, temperature: Array, top_k: Array, top_p: Array, min_p: Array
) -> Array:
    """See `sample_tokens`."""
    result = jax.ShapeDtypeStruct(logits.shape[:1], jnp.int32)
    return ffi_call("draw_tokens", result)(
        logits.astype(jnp.float32), keys, temperature, top_k, top_p, min_p
    )


def noise_keys(
    base: UInt32[Array, "2"], seeds: UInt32[Array, "rows 2"], positions: Int32[Array, " rows"]
) -> UInt32[Array, "rows 2"]:
    """Threefry key per row: `base` with the seed's two words and the position folded in."""
    result = jax.ShapeDtypeStruct(seeds.shape, jnp.uint32)
    return ffi_call("noise_keys", result)(base, seeds, positions)


def gumbel_noise(keys: UInt32[Array, "rows 2"], vocab: int) -> Float32[Array, "rows vocab"]:
    """Gumbel noise that `sample_tokens` adds for these keys."""
    result = jax.ShapeDtypeStruct((keys.shape[0], vocab), jnp.float32)
    return ffi_call("noise", result)(keys)
