"""Falcon-H1: attention and Mamba-2 side by side in every layer, with the multipliers of maximal
update parametrization.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from jengine.config import (
    AttentionConfig,
    Gate,
    LayerConfig,
    Mamba2Config,
    MlpConfig,
    ModelConfig,
    SideBySideConfig,
)
from jengine.errors import CheckpointError
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.hf_mamba import read_mamba2, write_mamba2
from jengine.models.reading.keys import factor, read_fields, write_fields
from jengine.models.reading.plain_decoder import ATTENTION_BIAS, MLP_BIAS, UNSAID, PlainDecoder
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("FalconH1ForCausalLM",)
MODELS = "Falcon-H1"
NAMES = Names(
    final_norm="final_layernorm",
    before_mlp="pre_ff_layernorm",
    gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
)
DEFAULTS = Defaults(
    vocab_size=128000,
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=None,
    max_position=8192,
    norm_eps=1e-5,
    bos_token_id=1,
    eos_token_id=2,
)
FACTORS = {
    "attention_input": factor("attention_in_multiplier"),
    "attention_keys": factor("key_multiplier"),
    "attention_output": factor("attention_out_multiplier"),
    "recurrent_input": factor("ssm_in_multiplier"),
    "recurrent_output": factor("ssm_out_multiplier"),
}
PLAIN = PlainDecoder(
    "falcon_h1",
    DEFAULTS,
    (ATTENTION_BIAS, MLP_BIAS),
    UNSAID,
    model_keys={
        "embed_scale": factor("embedding_multiplier"),
        "logit_scale": factor("lm_head_multiplier"),
    },
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields, config = Fields(hf), PLAIN.read_config(hf)
    layer = config.layers[0]
    assert isinstance(layer.mixer, AttentionConfig) and isinstance(layer.ffn, MlpConfig)
    mixer = SideBySideConfig(layer.mixer, _read_mamba2(fields), **read_fields(fields, FACTORS))
    gate, down = _factors(fields, "mlp_multipliers", 2)
    layer = LayerConfig(mixer, replace(layer.ffn, gate_scale=gate, output_scale=down))
    return replace(config, layers=(layer,) * len(config.layers))


def write_config(config: ModelConfig) -> dict[str, object]:
    mixer, mlp = config.layers[0].mixer, config.layers[0].ffn
    if not isinstance(mixer, SideBySideConfig) or not isinstance(mlp, MlpConfig):
        raise CheckpointError(
            f"A config.json of {config.architecture} cannot express layers without attention and"
            " Mamba-2 beside each other, and an MLP."
        )
    mamba = mixer.recurrent
    return {
        **PLAIN.write_config(config),
        **write_mamba2(config),
        **write_fields(mixer, FACTORS),
        "projectors_bias": mamba.bias,
        "mamba_expand": 2,
        "mamba_d_ssm": mamba.num_heads * mamba.head_dim,
        "mamba_rms_norm": mamba.gate != "alone",
        "mamba_norm_before_gate": mamba.gate == "after_norm",
        "ssm_multipliers": list(mamba.scales),
        "mlp_multipliers": [mlp.gate_scale, mlp.output_scale],
    }


def _read_mamba2(fields: Fields) -> Mamba2Config:
    """The Mamba-2 half, whose width is configured independently."""
    hidden = fields.integer("hidden_size", DEFAULTS.hidden_size)
    mamba = read_mamba2(fields, hidden, fields.optional_integer("mamba_d_ssm", 1024))
    if fields.flag("projectors_bias", False) != mamba.bias:
        fields.refuse("projectors_bias", f"mamba_proj_bias ({mamba.bias}), as in published models")
    comes_after = fields.flag("mamba_norm_before_gate", True)
    gate: Gate = "after_norm" if comes_after else "before_norm"
    if not fields.flag("mamba_rms_norm", False):
        gate = "alone"
    scales = _factors(fields, "ssm_multipliers", 5)
    return replace(
        mamba, gate=gate, scales=cast("tuple[float, float, float, float, float]", scales)
    )


def _factors(fields: Fields, key: str, count: int) -> tuple[float, ...]:
    if fields.values.get(key) is None:
        return (1.0,) * count
    return fields.numbers(key, count)
