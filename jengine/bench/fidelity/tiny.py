"""The config of a tiny model of any class: the class's defaults, with sizes shrunk by key name.

In: the config.json of a class's defaults. Out: keyword arguments of its config class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VOCABULARY = 97
HEADS, HIDDEN, LAYERS = 4, 64, 4


def _named(size: int, *names: str) -> dict[str, int]:
    return dict.fromkeys(names, size)


# Sizes by key name. Only larger defaults are replaced.
SIZES: Mapping[str, int] = {
    **_named(VOCABULARY, "vocab_size", "vocab_size_per_layer_input"),
    **_named(
        HIDDEN, "hidden_size", "n_embd", "d_model", "dim_model", "dim", "emb_dim", "embed_dim",
        "embedding_size", "word_embed_proj_dim", "lru_width",
    ),
    **_named(
        48, "intermediate_size", "n_inner", "ffn_dim", "d_ff", "dim_ff", "ffn_hidden_size",
        "decoder_ffn_dim", "encoder_ffn_dim", "intermediate_size_mlp", "dense_intermediate_size",
    ),
    **_named(
        24, "moe_intermediate_size", "expert_ffn_hidden_size", "expert_intermediate_size",
        "moe_ffn_hidden_size",
    ),
    **_named(20, "shared_expert_intermediate_size", "shared_intermediate_size"),
    **_named(
        LAYERS, "num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers",
        "encoder_layers", "num_decoder_layers", "num_encoder_layers",
    ),
    **_named(
        HEADS, "num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads",
        "encoder_attention_heads", "swa_num_attention_heads",
    ),
    **_named(
        512, "max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length",
        "max_sequence_length",
    ),
    **_named(
        16, "head_dim", "d_kv", "kv_channels", "v_head_dim", "global_head_dim", "swa_head_dim",
        "swa_v_head_dim",
    ),
    **_named(
        8, "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts",
        "moe_num_primary_experts",
    ),
    **_named(2, "num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts", "num_key_value_heads",
             "num_kv_heads", "n_kv_heads", "swa_num_key_value_heads", "n_shared_experts",
             "moe_num_shared_experts", "num_shared_experts", "num_shared_expert"),
    **_named(16, "sliding_window", "window_size", "attention_window_size", "local_attention"),
    **_named(1, "first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"),
    **_named(2, "n_group"),
    **_named(1, "topk_group"),
    **_named(20, "kv_lora_rank"),
    **_named(24, "q_lora_rank"),
    **_named(12, "qk_nope_head_dim"),
    **_named(8, "qk_rope_head_dim", "rotary_dim"),
    **_named(12, "mamba_d_state", "state_size", "ssm_state_size"),
    **_named(4, "mamba_n_heads", "mamba_num_heads", "linear_num_value_heads", "n_mamba_heads"),
    **_named(2, "linear_num_key_heads", "mamba_n_groups", "n_groups", "mamba_ngroups"),
    **_named(16, "linear_key_head_dim", "linear_value_head_dim", "mamba_head_dim"),
    **_named(0, "num_nextn_predict_layers"),
}  # fmt: skip
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads")
QUERY_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
# What the names of single classes mean, or need, besides.
OWN: Mapping[str, Mapping[str, Any]] = {
    "HunYuanDenseV1ForCausalLM": {"head_dim": 16},
    "HunYuanMoEV1ForCausalLM": {"head_dim": 16},
    "MinistralForCausalLM": {"head_dim": 16},
    "NemotronForCausalLM": {"head_dim": 16, "num_key_value_heads": 2},
    "NemotronHForCausalLM": {
        "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"]
    },
    "Gemma3ForConditionalGeneration": {
        "mm_tokens_per_image": 4, "image_token_index": 5, "boi_token_index": 6,
        "eoi_token_index": 7,
    },
    "DeepseekV2ForCausalLM": {"num_experts_per_tok": 2},
    "Glm4MoeForCausalLM": {"head_dim": 16},
    "Kolibri1ForCausalLM": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "MellumForCausalLM": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "GPTNeoForCausalLM": {"attention_types": [[["global", "local"], 2]], "window_size": 16},
    "Lfm2MoeForCausalLM": {"layer_types": ["conv", "full_attention"] * 2, "head_dim": 16},
    "JambaForCausalLM": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 5},
    "Mamba2ForCausalLM": {"num_heads": 8, "head_dim": 16},
    "DbrxForCausalLM": {
        "attn_config": {"clip_qkv": 8.0, "kv_n_heads": 2, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 8, "moe_top_k": 2},
    },
    "Dots1ForCausalLM": {
        "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2
    },
    "Zamba2ForCausalLM": {
        "layers_block_type": ["hybrid", "linear_attention", "hybrid", "hybrid"],
        "num_mem_blocks": 2, "num_key_value_heads": 4, "adapter_rank": 6,
        "use_shared_attention_adapter": True, "use_mem_rope": True,
    },
    "FlexOlmoForCausalLM": {"num_experts": 8},
    "CohereCompassForCausalLM": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "BigBirdForCausalLM": {"is_decoder": True, "attention_type": "original_full"},
    **{
        name: {"is_decoder": True}
        for name in
        ("BertGenerationDecoder", "BertLMHeadModel", "CamembertForCausalLM",
         "Data2VecTextForCausalLM", "ElectraForCausalLM", "ErnieForCausalLM",
         "MegatronBertForCausalLM", "RobertaForCausalLM",
         "RobertaPreLayerNormForCausalLM", "XLMRobertaForCausalLM", "XLMRobertaXLForCausalLM")
    },
}  # fmt: skip


# A second model of a class varies what its config has of these.
VARIED: Mapping[str, Any] = {
    "head_dim": 24, "rms_norm_eps": 1e-3, "layer_norm_eps": 1e-3, "layer_norm_epsilon": 1e-3,
    "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2,
    "logits_scaling": 2.5, "logit_scale": 0.5, "routed_scaling_factor": 1.7, "route_scale": 1.7,
    "router_scaling_factor": 1.7, "query_pre_attn_scalar": 20, "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 3.0,
}  # fmt: skip
FLIPPED = (
    "tie_word_embeddings", "norm_topk_prob", "scale_embedding", "mup_enabled", "attention_bias",
    "mlp_bias", "use_bias", "bias", "multi_query", "parallel_attn", "use_post_norm", "qkv_bias",
)  # fmt: skip


OWN_VARIED: Mapping[str, Mapping[str, Any]] = {
    "FalconForCausalLM": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "AfmoeForCausalLM": {"attention_bias": False},
    "OlmoForCausalLM": {"clip_qkv": 0.3},
}


def varied(architecture: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a second small model, whose flags and factors are not the defaults."""
    found = {key: value for key, value in VARIED.items() if defaults.get(key) is not None}
    flipped = {key: not defaults[key] for key in FLIPPED if type(defaults.get(key)) is bool}
    own = OWN_VARIED.get(architecture, {})
    return {**tiny(architecture, defaults), **found, **flipped, **own}


def tiny(architecture: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that make a small model of the class whose defaults these are."""
    return {**shrunk(defaults), **OWN.get(architecture, {})}


def shrunk(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Smaller sizes, and token ids within the small vocabulary."""
    found: dict[str, Any] = {}
    for key, value in defaults.items():
        if isinstance(value, Mapping) and key.endswith("_config"):
            if inner := shrunk(value):
                found[key] = {**_without_layers(value), **inner}
        elif key.endswith("token_id"):
            if _outside(value):
                found[key] = {"bos_token_id": 1, "eos_token_id": 2}.get(key, 0)
        elif key in SIZES and type(value) is int and value > SIZES[key]:
            found[key] = SIZES[key]
    if "qk_rope_head_dim" in found and "head_dim" in found:
        found["head_dim"] = found["qk_rope_head_dim"]  # what a rotation rotates
    queries = next((defaults[key] for key in QUERY_HEADS if key in defaults), None)
    for key in KV_HEADS:
        if found.get(key) and defaults[key] == queries:
            found[key] = HEADS
    return found


def _without_layers(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Remove settings that have one entry per layer."""
    layers = settings.get("num_hidden_layers")
    return {
        key: value
        for key, value in settings.items()
        if not (isinstance(value, list) and len(value) == layers) and key != "per_layer_config"
    }


def _outside(value: Any) -> bool:
    ids = value if isinstance(value, list) else [value]
    return any(type(one) is int and not 0 <= one < VOCABULARY for one in ids)
