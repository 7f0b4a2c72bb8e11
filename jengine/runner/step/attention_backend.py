"""Chooses the attention kernels and the KV cache dtype, by platform, head size and user setting."""

from __future__ import annotations

import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jengine.config import CacheGroup
from jengine.errors import ConfigError
from pallas_kernels.choice import (
    cpu_problem,
    fa4_problem,
    register_fa4,
    triton_problem,
    unserved_device,
)
from pallas_kernels.layout import BFLOAT16_BITS, FP8_BITS, INT8, has_scales
from sharding.placement import Placement

logger = logging.getLogger(__name__)
# Backends that are batch-invariant on one device: a row's bits do not depend on the batch or on
# chunking, in matmuls, norms, attention, MoE sums and the sampler.
BATCH_INVARIANT = frozenset({"cpu"})


# Backends that extend another one by prefill kernels.
BASES = {"fa4": "triton"}
CODES = {"int8": INT8, "fp8": FP8_BITS}
NAMES = {BFLOAT16_BITS: "bfloat16", **{dtype: name for name, dtype in CODES.items()}}


def attention_backend(wanted: str, groups: tuple[CacheGroup, ...], codes: str | None = None) -> str:
    """The requested backend if it can run here; for `auto` the best available. `codes`: KV cache
    quantization. Raises ConfigError."""
    chosen, problem = available_backend(wanted, groups)
    if codes is not None and any(group.spec.shares_heads for group in groups):
        raise ConfigError(
            f"kv_cache_dtype={codes!r}: the vectors that latent attention caches are not stored in"
            " codes yet. Leave it out."
        )
    if problem:
        logger.warning("Attention and matmuls run on XLA, which is slower: %s", problem)
    if wanted == "fa4":
        register_fa4()
    logger.info("Attention backend: %s", wanted if wanted in BASES else chosen)
    return chosen


def available_backend(wanted: str, groups: tuple[CacheGroup, ...]) -> tuple[str, str | None]:
    """Return the backend (for one of BASES, its base), and why `auto` falls back to XLA, if it
    does."""
    platform = jax.default_backend()
    if wanted == "xla":
        return wanted, None
    own = ("cpu" if platform == "cpu" else "triton") if wanted == "auto" else wanted
    kernels = BASES.get(own, own)
    problem = kernels_problem(own, platform, heads_of(groups))
    if kernels == "triton" and problem is None and (refused := unserved_device(platform)):
        # No fallback: XLA may be unable to compile for it as well, and would be slow.
        raise ConfigError(f"{refused} Or set attention_backend='xla', which is slower.")
    if wanted != "auto" and problem:
        raise ConfigError(
            f"attention_backend={wanted!r}: {problem} Use attention_backend='auto' or 'xla'."
        )
    return "xla" if problem else kernels, problem


def heads_of(groups: tuple[CacheGroup, ...]) -> set[int]:
    """Head sizes that kernels must support; latent attention kernels support any width."""
    return {group.spec.head_dim for group in groups if not group.spec.shares_heads}


def kernels_problem(backend: str, platform: str, head_dims: set[int]) -> str | None:
    """Why this backend's kernels cannot run here, or None."""
    if backend == "triton":
        return triton_problem(platform, head_dims)
    if backend == "fa4":
        return fa4_problem(platform, head_dims)
    if platform != "cpu":
        return f"the kernels are C++ for CPUs, and JAX runs on {platform}."
    if odd := [size for size in head_dims if size % 2]:
        return f"the kernels take heads of an even size; this has {odd[0]}."
    return cpu_problem()


def refuse_odd(backend: str, groups: tuple[CacheGroup, ...], block_size: int) -> None:
    """Raise ConfigError if this backend cannot read a quantized cache of such blocks: its kernels
    load codes in pairs."""
    heads = [group.spec.head_dim for group in groups if not group.spec.is_state]
    odd = [size for size in (block_size, *heads) if size % 2]
    if backend == "triton" and odd:
        raise ConfigError(
            f"kv_cache_dtype of codes with attention_backend='triton': the kernels take an even "
            f"block_size and even heads; given {odd[0]}. Leave kv_cache_dtype out."
        )


def cache_dtype(model_dtype: str, backend: str, codes: str | None = None) -> np.dtype:
    """Dtype of the cache's arrays, which hold bits or codes for some formats."""
    if codes is not None:
        return CODES[codes]
    if jax.default_backend() != "cpu":
        return jnp.dtype(model_dtype)
    as_bits = backend in ("xla", "cpu") and model_dtype == "bfloat16"
    return BFLOAT16_BITS if as_bits else jnp.dtype(jnp.float32)


def stored_as(dtype: Any, placement: Placement, prompts: str | None = None) -> str:
    """Name of the block format. Each device stores its scales after its codes, so quantized blocks
    depend on their sharding; FlashAttention-4 needs finite values, which other backends do not
    ensure."""
    ways = [placement.ways(axis) for axis in ("kv_heads", "block_tokens")]
    divided = has_scales(dtype) and max(ways) > 1
    name = cache_dtype_name(dtype) + f" divided by {ways[0]} and {ways[1]}" * divided
    return name + ", finite values" * (prompts is not None)


def cache_dtype_name(dtype: Any) -> str:
    """User-visible name of a cache array's dtype."""
    return NAMES.get(jnp.dtype(dtype), jnp.dtype(dtype).name)
