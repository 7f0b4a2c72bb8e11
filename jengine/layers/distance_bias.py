"""Learned relative position biases of attention scores (T5).

In: a layer's bias for each bucket of distances. Out: its bias for each distance.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jax import Array

from jengine.config import DistanceBiasConfig

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int


def distance_buckets(config: DistanceBiasConfig, *, bidirectional: bool) -> np.ndarray:
    """Return the T5 bucket of each distance, i32.

    Causal: keys 0 to `max_distance` tokens before their query. `bidirectional`: from `max_distance`
    before it to `max_distance` after it.
    """
    most = config.max_distance
    if not bidirectional:
        return _buckets(np.arange(most + 1), config.buckets, most)
    half = config.buckets // 2
    behind = np.arange(-most, most + 1)
    return _buckets(np.abs(behind), half, most) + half * (behind > 0).astype(np.int32)


def _buckets(distance: np.ndarray, buckets: int, most: int) -> np.ndarray:
    """Half of the buckets hold one distance each, the others logarithmically growing ranges.
    Logarithms are float32 as in training, since some distances are at a bucket's boundary."""
    single = buckets // 2
    share = np.log(np.maximum(distance, single).astype(np.float32) / np.float32(single))
    share = share / np.float32(math.log(most / single)) * np.float32(buckets - single)
    wide = np.minimum(single + share.astype(np.int32), buckets - 1)
    return np.where(distance < single, distance, wide).astype(np.int32)


def biases_by_distance(
    numbers: Float[Array, "kv_heads group buckets"],
    config: DistanceBiasConfig,
    *,
    bidirectional: bool,
) -> Float32[Array, "kv_heads group distances"]:
    """Expand biases per bucket to biases per distance, in the order of `distance_buckets`."""
    found = distance_buckets(config, bidirectional=bidirectional)
    return numbers.astype(jnp.float32)[:, :, found]


def between(
    biases: Float32[Array, "heads distances"],
    queries: Int[Array, " queries"],
    keys: Int[Array, " keys"],
) -> Float32[Array, "heads queries keys"]:
    """Look up bidirectional biases for query and key positions; far distances are clipped."""
    most = biases.shape[1] // 2
    behind = jnp.clip(keys[None, :] - queries[:, None], -most, most)
    return biases[:, behind + most]
