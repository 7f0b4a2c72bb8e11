"""Attention with linear biases (ALiBi): a position scheme of slopes instead of rotations.

Slopes instead of rotations (ALiBi) are numbers of heads that attention is given, as sinks are. A
table says which implementations take them (`pallas_kernels/choice.py`); a model with slopes attends
in XLA where another one was chosen, and its matmuls stay in kernels.
"""

from __future__ import annotations

import math

import numpy as np

from jengine.config import AttentionConfig


def alibi_slopes(config: AttentionConfig) -> np.ndarray | None:
    """What each head's scores lose for each token between key and query: f32[kv_heads, group].

    Where the number of heads is no power of two, slopes are those of the next one: every second
    of them, and then the others.
    """
    if config.alibi is None:
        return None
    whole = 2 ** math.ceil(math.log2(config.num_heads))
    exponents = np.arange(1, whole + 1) * (config.alibi.largest / whole)
    slopes = 2.0**-exponents
    if whole != config.num_heads:
        slopes = np.concatenate([slopes[1::2], slopes[::2]])[: config.num_heads]
    if config.alibi.is_scaled:
        slopes = slopes * (config.head_dim**-0.5 if config.scale is None else config.scale)
    return slopes.astype(np.float32).reshape(config.num_kv_heads, config.group)
