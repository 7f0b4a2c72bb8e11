"""Post-processing of pooled outputs in numpy: dimensions, normalisation, activation.

In: pooled outputs of a step, and parameters with defaults filled in. Out: float32 arrays.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jengine.config import PoolingConfig
from jengine.pooling_params import PoolingParams

SMALLEST_NORM = 1e-12


def finished(
    pooled: np.ndarray, params: PoolingParams, config: PoolingConfig, token_ids: Sequence[int]
) -> np.ndarray:
    """Apply dimensions, norm and activation. Returns [width], or [tokens, width] for per-token
    tasks."""
    pooled = np.asarray(pooled, np.float32)
    if params.task in ("embed", "token_embed"):
        if params.dimensions is not None:
            pooled = pooled[..., : params.dimensions]
        return normalized(pooled) if params.use_activation else pooled
    if config.difference:
        pooled = pooled[..., 1:] - pooled[..., :1]
    if config.tokens == "STEP" and params.task == "token_classify":
        if params.returned_token_ids:
            pooled = pooled[..., params.returned_token_ids]
        if params.step_tag_id is not None:
            pooled = pooled[np.asarray(token_ids) == params.step_tag_id]
    if config.logit_mean is not None:
        pooled = pooled - np.float32(config.logit_mean)
    if config.logit_sigma is not None:
        pooled = pooled / np.float32(config.logit_sigma)
    return probabilities(pooled, config.activation) if params.use_activation else pooled


def normalized(x: np.ndarray) -> np.ndarray:
    """L2-normalise rows."""
    norms = np.sqrt(np.sum(np.square(x, dtype=np.float32), axis=-1, keepdims=True))
    return x / np.maximum(norms, np.float32(SMALLEST_NORM))


def probabilities(scores: np.ndarray, activation: str) -> np.ndarray:
    """Apply the classifier's activation (softmax, sigmoid or none)."""
    if activation == "none":
        return scores
    if activation == "sigmoid":
        return np.float32(0.5) * (np.tanh(np.float32(0.5) * scores) + np.float32(1))
    shifted = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)
