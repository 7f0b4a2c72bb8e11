"""Reads gated delta nets from a config.json.

In: its fields. Out: a DeltaConfig, and which layers have one. Must not know families.
"""

from __future__ import annotations

from jengine.config import DeltaConfig, ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import read_activation
from jengine.models.reading.hf_layers import read_layer_types
from jengine.models.reading.hf_write import written_part

KINDS = {"linear_attention": "recurrent", "full_attention": "full"}


def read_delta(fields: Fields, *, split: bool = False) -> DeltaConfig:
    """Read gated delta nets; `split`: their input matmul is stored as several tensors."""
    if read_activation(fields, "hidden_act", "silu") != "silu":
        fields.refuse("hidden_act", "silu, which gated delta nets have after their convolution")
    heads = fields.integer("linear_num_key_heads", 16)
    values = fields.integer("linear_num_value_heads", 32)
    if values % heads:
        fields.refuse("linear_num_value_heads", f"a multiple of linear_num_key_heads ({heads})")
    return DeltaConfig(
        key_heads=heads,
        share=values // heads,
        key_dim=fields.integer("linear_key_head_dim", 128),
        value_dim=fields.integer("linear_value_head_dim", 128),
        width=fields.integer("linear_conv_kernel_dim", 4, minimum=2, maximum=16),
        split=split,
    )


def read_delta_layers(fields: Fields, num_layers: int) -> set[int]:
    """Indices of gated delta net layers, from `layer_types` or an interval."""
    if fields.values.get("layer_types") is not None:
        kinds = read_layer_types(fields, num_layers, KINDS)
        return {layer for layer, kind in enumerate(kinds) if kind == "recurrent"}
    every = fields.integer("full_attention_interval", 4)
    return {layer for layer in range(num_layers) if (layer + 1) % every}


def write_delta(config: ModelConfig) -> dict[str, object]:
    """Inverse of `read_delta` and `read_delta_layers`."""
    delta = written_part(config, DeltaConfig, "delta nets")
    names = {ours: theirs for theirs, ours in KINDS.items()}
    return {
        "linear_num_key_heads": delta.key_heads,
        "linear_num_value_heads": delta.key_heads * delta.share,
        "linear_key_head_dim": delta.key_dim,
        "linear_value_head_dim": delta.value_dim,
        "linear_conv_kernel_dim": delta.width,
        "layer_types": [
            names["recurrent" if isinstance(layer.mixer, DeltaConfig) else "full"]
            for layer in config.layers
        ],
    }
