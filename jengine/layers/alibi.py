"""Attention with linear biases (ALiBi): per-head slopes in place of rotary embedding.

Slopes are passed to attention per head, like sinks. `pallas_kernels/choice.py` lists the attention
implementations that support them; with another one, attention runs in XLA while matmuls keep their
kernels.
"""

from __future__ import annotations

import math

import numpy as np

from jengine.config import AttentionConfig


def alibi_slopes(config: AttentionConfig) -> np.ndarray:
    """Slope per head, f32[kv_heads, group]: subtracted per token of distance between key and query.

    For a number of heads that is no power of two: every second slope of the next power of two,
    followed by the remaining ones (as in the paper's code).
    """
    assert config.alibi is not None
    whole = 2 ** math.ceil(math.log2(config.num_heads))
    exponents = np.arange(1, whole + 1) * (config.alibi.largest / whole)
    slopes = 2.0**-exponents
    if whole != config.num_heads:
        slopes = np.concatenate([slopes[1::2], slopes[::2]])[: config.num_heads]
    if config.alibi.is_scaled:
        slopes = slopes * (config.head_dim**-0.5 if config.scale is None else config.scale)
    return slopes.astype(np.float32).reshape(config.num_kv_heads, config.group)
