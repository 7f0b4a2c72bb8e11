"""DBRX: experts on every layer, clipped queries, keys and values, layer norms without biases."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import ExpertsConfig, ModelConfig, RoutingConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults, read_activation, read_experts_count
from jengine.models.reading.hf_write import written_attention, written_experts, written_ffn
from jengine.models.reading.plain_decoder import PlainDecoder, with_attention, with_blocks
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("DbrxForCausalLM",)
MODELS = "DBRX"
ATTENTION, EXPERTS = "norm_attn_norm.attn.", "ffn.experts.mlp."
NAMES = Names(
    prefix="transformer.",
    embed="wte",
    layers="blocks",
    final_norm="norm_f",
    before_attention="norm_attn_norm.norm_1",
    before_mlp="norm_attn_norm.norm_2",
    qkv=(f"{ATTENTION}Wqkv",),
    attention_out=f"{ATTENTION}out_proj",
    router="ffn.router.layer",
    expert_gate_up=(f"{EXPERTS}w1", f"{EXPERTS}v1"),
    expert_down=f"{EXPERTS}w2",
    expert_layout="rows",
)
DEFAULTS = Defaults(
    vocab_size=32000,
    hidden_size=2048,
    intermediate_size=3584,
    num_layers=24,
    num_heads=16,
    num_kv_heads=1,
    head_dim=None,
    max_position=2048,
)
PLAIN = PlainDecoder("dbrx", DEFAULTS, model={"norm": "layer_no_bias", "norm_eps": 1e-5})
# Object in config.json ("": top level) -> DBRX's key -> the usual key.
KEYS: dict[str, dict[str, str]] = {
    "": {
        "d_model": "hidden_size",
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "max_seq_len": "max_position_embeddings",
    },
    "attn_config": {"kv_n_heads": "num_key_value_heads", "rope_theta": "rope_theta"},
    "ffn_config": {
        "ffn_hidden_size": "intermediate_size",
        "moe_num_experts": "num_experts",
        "moe_top_k": "num_experts_per_tok",
    },
}


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    parts = {key: fields.part(key) or Fields({}) if key else fields for key in KEYS}
    usual = {
        ours: parts[part].values[theirs]
        for part, names in KEYS.items()
        for theirs, ours in names.items()
        if theirs in parts[part].values
    }
    attention, ffn = parts["attn_config"], parts["ffn_config"]
    power = ffn.values.get("moe_normalize_expert_weights", 1.0)
    if power not in (None, 1):
        ffn.refuse("moe_normalize_expert_weights", "1, so that weights sum to one, or null")
    config = PLAIN.read_config({**hf, **usual})
    experts = ExpertsConfig(
        *read_experts_count(Fields(usual), 4, 1, "num_experts"),
        intermediate_size=written_ffn(config).intermediate_size,
        activation=read_activation(ffn.part("ffn_act_fn") or Fields({}), "name", "silu"),
        routing=RoutingConfig(normalize=power is not None),
    )
    config = with_attention(config, clip=attention.optional_number("clip_qkv", None))
    return with_blocks(config, [experts] * len(config.layers))


def write_config(config: ModelConfig) -> dict[str, object]:
    experts = written_experts(config)
    usual = {
        **PLAIN.write_config(config),
        "num_experts": experts.num_experts,
        "num_experts_per_tok": experts.experts_per_token,
    }
    own = {
        part: {theirs: usual[ours] for theirs, ours in names.items()}
        for part, names in KEYS.items()
    }
    own["attn_config"]["clip_qkv"] = written_attention(config).clip
    own["ffn_config"] |= {
        "ffn_act_fn": {"name": usual["hidden_act"]},
        "moe_normalize_expert_weights": 1.0 if experts.routing.normalize else None,
    }
    # transformers takes the RoPE base from the top level.
    unused = {ours for names in KEYS.values() for ours in names.values()} - {"rope_theta"}
    plain = {key: usual[key] for key in usual.keys() - unused - {"hidden_act", "head_dim"}}
    return plain | own.pop("") | own
