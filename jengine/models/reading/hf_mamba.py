"""Reads Mamba-2 layers from a config.json.

In: its fields. Out: a Mamba2Config, and which layers have one. Must not know families.
"""

from __future__ import annotations

from jengine.config import Mamba2Config, ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import read_activation
from jengine.models.reading.hf_write import written_part

# transformers 4 and 5 name layer types differently.
KINDS = {
    "mamba": "recurrent",
    "linear_attention": "recurrent",
    "attention": "full",
    "full_attention": "full",
}


def read_mamba2(fields: Fields, hidden: int, inner: int | None = None) -> Mamba2Config:
    """Read Mamba-2 under the keys shared by Bamba, Granite 4 and Falcon-H1. `inner`: width of x;
    None: expand * hidden size."""
    if read_activation(fields, "hidden_act", "silu") != "silu":
        fields.refuse("hidden_act", "silu, which Mamba-2 layers have after their convolution")
    heads = fields.integer("mamba_n_heads", 128)
    inner = fields.integer("mamba_expand", 2) * hidden if inner is None else inner
    dim = inner // heads
    given = fields.values.get("mamba_d_head", "auto")
    if (given != "auto" and fields.integer("mamba_d_head", dim) != dim) or dim * heads != inner:
        fields.refuse(
            "mamba_d_head", f"the width of all values ({inner}) / mamba_n_heads ({heads})"
        )
    groups = fields.integer("mamba_n_groups", 1)
    if heads % groups:
        fields.refuse("mamba_n_groups", f"a divisor of mamba_n_heads ({heads})")
    return Mamba2Config(
        num_heads=heads,
        head_dim=dim,
        groups=groups,
        state_size=fields.integer("mamba_d_state", 256),
        width=fields.integer("mamba_d_conv", 4, minimum=2, maximum=16),
        conv_bias=fields.flag("mamba_conv_bias", True),
        bias=fields.flag("mamba_proj_bias", False),
        time_limits=read_time_limits(fields),
    )


def read_time_limits(fields: Fields) -> tuple[float, float]:
    """Minimum and maximum time step; the maximum may be infinite."""
    given = fields.values.get("time_step_limit")
    if given is None:
        return 0.0, float("inf")
    numbers = [_number(one) for one in given] if isinstance(given, list | tuple) else []
    if len(numbers) != 2 or not all(isinstance(one, float) for one in numbers):
        fields.refuse("time_step_limit", "a list of two numbers")
    return numbers[0], numbers[1]


def _number(given: object) -> float:
    """A float, also from transformers' encoding of infinity."""
    if isinstance(given, dict):
        given = given.get("__float__")
    if isinstance(given, str) and given in ("Infinity", "inf"):
        return float("inf")
    return float(given) if isinstance(given, int | float) else float("nan")


def written_mamba2(config: ModelConfig) -> Mamba2Config:
    """The model's Mamba-2 config. Raises CheckpointError if it has none."""
    return written_part(config, Mamba2Config, "Mamba-2 layers")


def write_kinds(config: ModelConfig) -> list[str]:
    """Layer types in transformers 5's names."""
    return [
        "linear_attention" if isinstance(layer.mixer, Mamba2Config) else "full_attention"
        for layer in config.layers
    ]


def write_mamba2(config: ModelConfig) -> dict[str, object]:
    """Inverse of `read_mamba2`."""
    mamba = written_mamba2(config)
    return {
        "mamba_n_heads": mamba.num_heads,
        "mamba_d_head": mamba.head_dim,
        "mamba_expand": mamba.num_heads * mamba.head_dim // config.hidden_size,
        "mamba_n_groups": mamba.groups,
        "mamba_d_state": mamba.state_size,
        "mamba_d_conv": mamba.width,
        "mamba_conv_bias": mamba.conv_bias,
        "mamba_proj_bias": mamba.bias,
        "time_step_limit": list(mamba.time_limits),
    }
