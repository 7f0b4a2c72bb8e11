"""GPT-NeoX and Pythia: parallel block, partly rotated heads, biases everywhere, one QKV tensor
grouped by head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import LayerConfig, ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    Defaults,
    read_attention,
    read_decoder,
    read_mlp,
    read_num_layers,
)
from jengine.models.reading.hf_layers import expect_uniform_layers
from jengine.models.reading.hf_rope import PARTIAL
from jengine.models.reading.hf_write import write_decoder, written_attention
from jengine.models.tensors.checkpoint import IgnoredTensor, Names

ARCHITECTURES = ("GPTNeoXForCausalLM",)
MODELS = "GPT-NeoX, Pythia"
NAMES = Names(
    prefix="gpt_neox.",
    embed="embed_in",
    final_norm="final_layer_norm",
    head="embed_out",
    qkv=("attention.query_key_value",),
    qkv_by_head=True,
    attention_out="attention.dense",
    gate_up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
    ignored=(
        IgnoredTensor(
            r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",
            "old files store the causal mask and the rotary frequencies",
        ),
    ),
)
DEFAULTS = Defaults(
    vocab_size=50432,
    hidden_size=6144,
    intermediate_size=24576,
    num_layers=44,
    num_heads=64,
    num_kv_heads=None,
    head_dim=None,
    max_position=2048,
    norm_eps=1e-5,
    norm_eps_key="layer_norm_eps",
    partial_rotary=0.25,
    activation="gelu",
    bos_token_id=0,
    eos_token_id=2,
)
# Names of rotary settings that only this family has.
ROPE_KEYS = {"rotary_emb_base": "rope_theta", "rotary_pct": PARTIAL}


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    if hf.get("rope_parameters") is None:
        own = {theirs: hf[key] for key, theirs in ROPE_KEYS.items() if hf.get(key) is not None}
        hf = {**hf, **own}
    fields = Fields(hf)
    num_layers = read_num_layers(fields, DEFAULTS)
    expect_uniform_layers(fields, num_layers, "full")
    bias = fields.flag("attention_bias", True)
    attention = read_attention(fields, DEFAULTS, qkv_bias=bias, output_bias=bias)
    if attention.num_heads != attention.num_kv_heads:
        fields.refuse("num_key_value_heads", "as many as num_attention_heads")
    mlp = replace(read_mlp(fields, DEFAULTS), gated=False, biases=True)
    config = read_decoder(fields, DEFAULTS, (LayerConfig(attention, mlp),) * num_layers)
    parallel = fields.flag("use_parallel_residual", True)
    return replace(config, norm="layer", block="parallel" if parallel else "serial")


def write_config(config: ModelConfig) -> dict[str, object]:
    written = write_decoder(config, DEFAULTS.norm_eps_key)
    return {
        **written,
        "model_type": "gpt_neox",
        "rotary_emb_base": written["rope_theta"],
        "rotary_pct": written.get(PARTIAL, 1.0),
        PARTIAL: written.get(PARTIAL, 1.0),
        "attention_bias": written_attention(config).qkv_bias,
        "use_parallel_residual": config.block == "parallel",
    }
