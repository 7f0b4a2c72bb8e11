"""Converts parameters of Tunix's models to jengine's layout, to sample while it trains them.

In: the parameters of a tunix.models Llama 3, Qwen 2 or Qwen 3 (dense). Out: dotted path -> array.
Shapes say everything, so no config is needed. Must not know Tunix's code, nor engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jengine.errors import ConfigError
from jengine.weights.live import named_arrays

# Parameters that differ in name only: theirs -> ours.
WHOLE = {
    "embedder.input_embedding": "embed.weight",
    "final_norm.w": "norm.weight",
    "lm_head.w": "head.weight",
}
IN_LAYER = {
    "input_layernorm.w": "before_attention.weight",
    "post_attention_layernorm.w": "before_mlp.weight",
    "attn.q_norm.w": "attention.q_norm.weight",
    "attn.k_norm.w": "attention.k_norm.weight",
    "mlp.down_proj.kernel": "mlp.down.weight",
}
PROJECTIONS = ("attn.q_proj.w", "attn.k_proj.w", "attn.v_proj.w")
BIASES = ("attn.q_bias", "attn.k_bias", "attn.v_bias")
OUT = "attn.o_proj.w"
GATE_UP = ("mlp.gate_proj.kernel", "mlp.up_proj.kernel")
NEEDED = {*PROJECTIONS, OUT, *GATE_UP}


def dense_decoder(params: Any) -> dict[str, Array]:
    """Convert the parameters of a dense tunix.models decoder. Raises ConfigError for other
    models."""
    given = named_arrays(params)
    _check_names(given)
    return _converted(given)


@jax.jit
def _converted(given: Mapping[str, Array]) -> dict[str, Array]:
    made = {ours: given[theirs] for theirs, ours in WHOLE.items() if theirs in given}
    for index, layer in _layers(given).items():
        made |= {f"layers.{index}.{path}": array for path, array in _layer(layer).items()}
    return made


def _layer(given: Mapping[str, Array]) -> dict[str, Array]:
    """Convert one layer, fusing q, k and v into one array grouped by KV head."""
    q, k, v = (given[name] for name in PROJECTIONS)  # [hidden, heads, dim]
    hidden, heads, dim = q.shape
    kv = k.shape[1]
    made = {ours: given[theirs] for theirs, ours in IN_LAYER.items() if theirs in given}
    made["attention.qkv.weight"] = _grouped(q.reshape(hidden, kv, -1, dim), k, v)
    made["attention.out.weight"] = given[OUT].reshape(kv, heads // kv, dim, hidden)
    made["mlp.gate_up.weight"] = jnp.stack([given[name] for name in GATE_UP], axis=1)
    if BIASES[0] in given:
        bias_q, bias_k, bias_v = (given[name] for name in BIASES)
        made["attention.qkv.bias"] = _grouped(
            bias_q.reshape(kv, -1, dim), bias_k.reshape(kv, dim), bias_v.reshape(kv, dim)
        )
    return made


def _grouped(q: Array, k: Array, v: Array) -> Array:
    """q [..., kv, group, dim], k and v [..., kv, dim] -> [..., kv, group + 2, dim]."""
    return jnp.concatenate([q, k[..., None, :], v[..., None, :]], axis=-2)


def _layers(given: Mapping[str, Array]) -> dict[str, dict[str, Array]]:
    """Layer number -> its parameters by their names inside the layer."""
    layers: dict[str, dict[str, Array]] = {}
    for path, array in given.items():
        if path.startswith("layers.") and path.count(".") >= 2:
            _, index, name = path.split(".", 2)
            layers.setdefault(index, {})[name] = array
    return layers


def _check_names(given: Mapping[str, Any]) -> None:
    """Raise ConfigError for unknown or missing parameters."""
    inside = {*IN_LAYER, *NEEDED, *BIASES}
    strange = [
        path
        for path in given
        if path not in WHOLE and (path.count(".") < 2 or path.split(".", 2)[2] not in inside)
    ]
    missing = [
        f"layers.{index}.{name}"
        for index, layer in _layers(given).items()
        for name in (NEEDED | (set(BIASES) if set(BIASES) & set(layer) else set()))
        if name not in layer
    ]
    if strange or missing:
        raise ConfigError(
            "these are not the parameters of a dense tunix.models Llama 3, Qwen 2 or Qwen 3:"
            f" unknown {sorted(strange)[:5]}, missing {sorted(missing)[:5]}. Merge LoRA weights"
            " into the model first; for other models give a mapping of your own."
        )
