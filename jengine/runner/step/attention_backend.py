"""Chooses the implementation of the paged operations, by platform and shape."""

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
    """The wanted backend if it can run here; for `auto`, the best one that can."""
    platform = jax.default_backend()
    problem = triton_problem(platform, {group.spec.head_dim for group in groups})
    if wanted == "triton" and problem:
        raise ConfigError(
            f"attention_backend='triton': {problem} Use attention_backend='auto' or 'xla'."
        )
    if wanted != "auto":
        chosen = wanted
    elif platform == "cpu":
        return "xla"  # the kernels only run in Triton's interpreter
    else:
        chosen = "xla" if problem else "triton"
    if problem and chosen == "xla" and wanted == "auto":
        logger.warning("Attention runs on XLA, which is slow on a GPU: %s", problem)
    logger.info("Attention backend: %s", chosen)
    return chosen


def cache_dtype(model_dtype: str, backend: str) -> np.dtype:
    """The dtype of the cache's arrays."""
    if jax.default_backend() != "cpu":
        return jnp.dtype(model_dtype)
    as_bits = backend == "xla" and model_dtype == "bfloat16"
    return BFLOAT16_BITS if as_bits else jnp.dtype(jnp.float32)


def cache_dtype_name(dtype: Any) -> str:
    """The name of a cache array's dtype, also where bfloat16 is stored as integers."""
    return "bfloat16" if jnp.dtype(dtype) == BFLOAT16_BITS else jnp.dtype(dtype).name
