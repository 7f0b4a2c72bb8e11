"""Nemotron-H: Mamba-2, attention without rotation, and ungated MLPs. Checkpoints count each as a
layer; here an MLP belongs to the layer of the mixer before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from jengine.config import AttentionConfig, LayerConfig, Mamba2Config, MlpConfig, ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    MOST_LAYERS,
    Defaults,
    read_activation,
    read_attention,
    read_decoder,
)
from jengine.models.reading.hf_mamba import written_mamba2
from jengine.models.reading.hf_write import write_decoder, written_biases
from jengine.models.tensors.checkpoint import IgnoredTensor, Names

Kind = Literal["mamba", "attention", "mlp"]
ARCHITECTURES = ("NemotronHForCausalLM",)
MODELS = "Nemotron-H, Nemotron Nano 2"
NAMES = Names(
    prefix="backbone.",
    embed="embeddings",
    final_norm="norm_f",
    before_attention="norm",
    before_mlp="norm",
    qkv=("mixer.q_proj", "mixer.k_proj", "mixer.v_proj"),
    attention_out="mixer.o_proj",
    recurrent="mixer",
    gate_up=("mixer.up_proj",),
    down="mixer.down_proj",
    halves_apart=True,
    ignored=(IgnoredTensor(r"mtp\..*", "layers that draft tokens are not used"),),
)
DEFAULTS = Defaults(
    vocab_size=131072,
    hidden_size=4096,
    intermediate_size=21504,
    num_layers=52,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    max_position=4096,
    norm_eps=1e-5,
    norm_eps_key="layer_norm_epsilon",
    activation="relu2",
    activation_key="mlp_hidden_act",
    bos_token_id=1,
    eos_token_id=2,
)
LETTERS: dict[str, Kind] = {"M": "mamba", "*": "attention", "-": "mlp"}
NAMED: dict[str, Kind] = {
    "mamba": "mamba", "linear_attention": "mamba", "attention": "attention",
    "full_attention": "attention", "mlp": "mlp",
}  # fmt: skip
NO_MLP = MlpConfig(0, "relu_squared", gated=False)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    fields.expect("residual_in_fp32", False, ", as in all published Nemotron-H")
    mlp = MlpConfig(
        fields.integer("intermediate_size", DEFAULTS.intermediate_size),
        read_activation(fields, "mlp_hidden_act", "relu2"),
        gated=False,
        biases=fields.flag("mlp_bias", False),
    )
    attention = replace(read_attention(fields, DEFAULTS), rope=None)
    layers: list[LayerConfig] = []
    for kind in _read_kinds(fields):
        if kind != "mlp":
            mixer = attention if kind == "attention" else _read_mamba2(fields)
            layers.append(LayerConfig(mixer, replace(NO_MLP, activation=mlp.activation)))
        elif layers and not layers[-1].ffn.active_size:
            layers[-1] = replace(layers[-1], ffn=mlp)
        else:
            fields.refuse(_key(fields), "no MLP at the begin or after another one")
    return read_decoder(fields, DEFAULTS, tuple(layers))


def write_config(config: ModelConfig) -> dict[str, object]:
    mamba, kinds = written_mamba2(config), list[str]()
    for layer in config.layers:
        is_full = isinstance(layer.mixer, AttentionConfig)
        kinds.append("full_attention" if is_full else "linear_attention")
        kinds += ["mlp"] * bool(layer.ffn.active_size)
    written = write_decoder(config, "layer_norm_epsilon")
    return {
        **written,
        "model_type": "nemotron_h",
        "num_hidden_layers": len(kinds),
        "layers_block_type": kinds,
        "mlp_hidden_act": written["hidden_act"],
        "mlp_bias": written_biases(config),
        "mamba_num_heads": mamba.num_heads,
        "mamba_head_dim": mamba.head_dim,
        "n_groups": mamba.groups,
        "ssm_state_size": mamba.state_size,
        "conv_kernel": mamba.width,
        "use_conv_bias": mamba.conv_bias,
        "use_bias": mamba.bias,
        "time_step_min": mamba.time_limits[0],
    }


def _key(fields: Fields) -> str:
    names = "layers_block_type", "layer_types", "hybrid_override_pattern"
    return next((name for name in names if fields.values.get(name) is not None), names[0])


def _read_kinds(fields: Fields) -> list[Kind]:
    """Kind of each checkpoint layer, from names or a pattern of letters."""
    key = _key(fields)
    given, known = fields.values.get(key), LETTERS if key.endswith("pattern") else NAMED
    if not isinstance(given, list | tuple | str) or not 1 <= len(given) <= MOST_LAYERS:
        fields.refuse(key, f"1 to {MOST_LAYERS} layers, each one of {', '.join(known)}")
    kinds = [known.get(one) if isinstance(one, str) else None for one in given]
    if None in kinds:
        fields.refuse(
            key, f"layers out of {', '.join(known)} (experts without gates are not built)"
        )
    return [kind for kind in kinds if kind is not None]


def _read_mamba2(fields: Fields) -> Mamba2Config:
    if read_activation(fields, "mamba_hidden_act", "silu") != "silu":
        fields.refuse("mamba_hidden_act", "silu")
    heads, groups = fields.integer("mamba_num_heads", 128), fields.integer("n_groups", 8)
    if heads % groups:
        fields.refuse("n_groups", f"a divisor of mamba_num_heads ({heads})")
    return Mamba2Config(
        num_heads=heads,
        head_dim=fields.integer("mamba_head_dim", 64),
        groups=groups,
        state_size=fields.integer("ssm_state_size", 128),
        width=fields.integer("conv_kernel", 4, minimum=2, maximum=16),
        conv_bias=fields.flag("use_conv_bias", True),
        bias=fields.flag("use_bias", False),
        # As in transformers, where `time_step_limit` and `time_step_max` have no effect.
        time_limits=(fields.number("time_step_min", 0.001), math.inf),
    )
