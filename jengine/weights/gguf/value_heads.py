"""Order of the value heads of gated delta nets. GGUF interleaves them: the first of each key head,
then the second, ...; in checkpoints those of one key head are contiguous.

In: a ModelConfig. Out: the function that restores a tensor. Must not know files.
"""

from __future__ import annotations

import numpy as np

from jengine.config import DeltaConfig, ModelConfig
from jengine.weights.gguf.tensor import Turn

# Modules whose rows (columns of ssm_out) are value heads; those where q and k come first; those
# with one row per head.
OF_VALUES = ("attn_gate", "ssm_out")
BEHIND_KEYS = ("attn_qkv", "ssm_conv1d")
SINGLE = ("ssm_beta", "ssm_alpha", "ssm_a", "ssm_dt")


def grouped_values(config: ModelConfig, module: str) -> Turn | None:
    """Function that makes the value heads of each key head contiguous, or None."""
    delta = delta_of(config, split=True)
    if delta is None or module not in (*OF_VALUES, *BEHIND_KEYS, *SINGLE):
        return None
    width = 1 if module in SINGLE else delta.value_dim
    first = 2 * delta.key_heads * delta.key_dim if module in BEHIND_KEYS else 0
    values = np.arange(delta.share * delta.key_heads * width)
    values = values.reshape(delta.share, delta.key_heads, width).swapaxes(0, 1).ravel()
    order = np.concatenate([np.arange(first), first + values])
    return (lambda array: array[:, order]) if module == "ssm_out" else lambda array: array[order]


def delta_of(config: ModelConfig, *, split: bool) -> DeltaConfig | None:
    """Config of the gated delta nets if checkpoints store their input projection split (as several
    tensors) as given; else None."""
    mixers = (layer.mixer for layer in config.layers)
    found = next((mixer for mixer in mixers if isinstance(mixer, DeltaConfig)), None)
    return found if found is not None and found.split is split else None
