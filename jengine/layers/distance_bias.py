"""Learned biases of attention scores by the distance of key and query.

In: a layer's number for each bucket of distances. Out: its number for each distance.
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
    """The bucket of each distance, i32: of keys 0 to `max_distance` tokens before their query; or,
    `bidirectional`, of those from so many before it to as many behind it, in this order."""
    most = config.max_distance
    if not bidirectional:
        return _buckets(np.arange(most + 1), config.buckets, most)
    half = config.buckets // 2
    behind = np.arange(-most, most + 1)
    return _buckets(np.abs(behind), half, most) + half * (behind > 0).astype(np.int32)


def _buckets(distance: np.ndarray, buckets: int, most: int) -> np.ndarray:
    """The first half of the buckets are for one distance each, the second for ranges that grow with
    it. Logarithms are float32, as in the models' training: some distances are at a boundary."""
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
    """What is added to scores at each of the distances of `distance_buckets`."""
    found = distance_buckets(config, bidirectional=bidirectional)
    return numbers.astype(jnp.float32)[:, :, found]


def between(
    biases: Float32[Array, "heads distances"],
    queries: Int[Array, " queries"],
    keys: Int[Array, " keys"],
) -> Float32[Array, "heads queries keys"]:
    """What a table of both directions adds to scores, by the positions of queries and keys."""
    most = biases.shape[1] // 2
    behind = jnp.clip(keys[None, :] - queries[:, None], -most, most)
    return biases[:, behind + most]
