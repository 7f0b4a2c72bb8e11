"""Which implementation of the paged operations an engine uses: by platform and shape, said once."""

from __future__ import annotations

import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jengine.config import CacheGroup
from jengine.errors import ConfigError
from pallas_kernels.choice import triton_problem
from pallas_kernels.layout import BFLOAT16_BITS

logger = logging.getLogger(__name__)


def attention_backend(wanted: str, groups: tuple[CacheGroup, ...]) -> str:
    """What `auto` means here, or what was asked for if it can run."""
    platform = jax.default_backend()
    problem = triton_problem(platform, {group.spec.head_dim for group in groups})
    if wanted == "triton" and problem:
        raise ConfigError(
            f"attention_backend='triton': {problem} Use attention_backend='auto' or 'xla'."
        )
    if wanted != "auto":
        chosen = wanted
    elif platform == "cpu":
        return "xla"  # there is no other that anybody would want
    else:
        chosen = "xla" if problem else "triton"
    if problem and chosen == "xla" and wanted == "auto":
        logger.warning("Attention runs on XLA, which is slow on a GPU: %s", problem)
    logger.info("Attention backend: %s", chosen)
    return chosen


def cache_dtype(model_dtype: str, backend: str) -> np.dtype:
    """The type of the cache's arrays."""
    if jax.default_backend() != "cpu":
        return jnp.dtype(model_dtype)
    as_bits = backend == "xla" and model_dtype == "bfloat16"
    return BFLOAT16_BITS if as_bits else jnp.dtype(jnp.float32)


def cache_dtype_name(dtype: Any) -> str:
    """The number type of a cache array, whose bits may be stored as integers."""
    return "bfloat16" if jnp.dtype(dtype) == BFLOAT16_BITS else jnp.dtype(dtype).name
