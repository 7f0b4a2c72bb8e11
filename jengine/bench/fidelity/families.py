"""The generative model families, with the config.json of a tiny model of each.

Tests' tiny models and the draws of `python -m jengine.bench.fidelity` begin with these.
"""

from __future__ import annotations

from typing import Any

from jengine.models.architectures import FAMILIES as ARCHITECTURES

GENERATIVE = ("ForCausalLM", "LMHeadModel")  # ends of the names of architectures


def generative_families() -> dict[str, str]:
    """The first generative architecture of each family's module, by the module's name."""
    found: dict[str, str] = {}
    for architecture, module in ARCHITECTURES.items():
        if architecture.endswith(GENERATIVE):
            found.setdefault(module.rpartition(".")[2], architecture)
    del found["gemma4_unified"]  # drawn as gemma4
    return found


FAMILIES = {
    **generative_families(),
    # A second architecture of a module, which differs by more than its name.
    "granite_moe_shared": "GraniteMoeSharedForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "glm": "GlmForCausalLM",
    "qwen3_5_moe": "Qwen3_5MoeForCausalLM",
    "falcon_mamba": "FalconMambaForCausalLM",
}
GRANITE_SIZES = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.4,
    "logits_scaling": 2.5,
    "pad_token_id": 0,
}
SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LATENT_ATTENTION = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 20,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
SHARED_EXPERTS = {**EXPERTS, "shared_expert_intermediate_size": 20}
ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
GROUPED = {**ROUTED, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5}
LOCAL = {"num_local_experts": 6, "num_experts_per_tok": 3}
CONVOLUTIONS = {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "conv"]}
LATENT = {**LATENT_ATTENTION, "first_k_dense_replace": 1, **GROUPED}
MAMBA2 = {"mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 12, "mamba_d_head": "auto"}
DELTA = {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 24,
    # With larger weights float32 itself is not exact to 1e-4: transformers differs as much from
    # itself with other chunks.
    "initializer_range": 0.15,
}
SELECTIVE = {"state_size": 12, "time_step_rank": 5}
OWN_SIZES: dict[str, dict[str, Any]] = {
    "deepseek_v2": {**LATENT, "n_shared_experts": 2, "topk_method": "group_limited_greedy"},
    "deepseek_v3": {**LATENT, "num_nextn_predict_layers": 0},
    "mistral": {"sliding_window": 16},
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {"head_dim": 16, **EXPERTS, "norm_topk_prob": True},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gemma": {"head_dim": 12},
    "seed_oss": {"head_dim": 12},
    "gemma2": {"head_dim": 12, "query_pre_attn_scalar": 20, "sliding_window": 16},
    "gemma3": {
        "head_dim": 12,
        "query_pre_attn_scalar": 20,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "gemma4": {
        "num_hidden_layers": 6,
        "head_dim": 12,
        "global_head_dim": 16,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 3,
        "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 6,
        "vocab_size_per_layer_input": 97,
        "final_logit_softcapping": 30.0,
        "pad_token_id": 0,
        # Gates of a layer's inputs may let next to nothing through, which is then normalised.
        "rms_norm_eps": 1e-2,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.5,
                "rope_theta": 1e6,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "phi3": {"pad_token_id": 0},
    "qwen2_moe": SHARED_EXPERTS,
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 3, "pad_token_id": 0},
    "glm4_moe": {
        "head_dim": 16,
        **GROUPED,
        "use_qk_norm": True,
        "num_nextn_predict_layers": 0,
    },
    "granite": GRANITE_SIZES,
    "granite_moe": {**GRANITE_SIZES, **LOCAL},
    "granite_moe_shared": {**GRANITE_SIZES, **LOCAL, "shared_intermediate_size": 20},
    "dbrx": {
        "attn_config": {"clip_qkv": 1.5, "kv_n_heads": 2, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 6, "moe_top_k": 3},
    },
    "zamba2": {
        "num_hidden_layers": 5,
        "layers_block_type": ["hybrid", "linear_attention", "hybrid", "linear_attention", "hybrid"],
        "num_mem_blocks": 2,
        "initializer_range": 0.15,
        "num_key_value_heads": 4,
        "n_mamba_heads": 4,
        "mamba_ngroups": 2,
        "mamba_d_state": 12,
        "adapter_rank": 6,
        "use_shared_attention_adapter": True,
        "use_mem_rope": True,
        "pad_token_id": 0,
    },
    "starcoder2": {"sliding_window": 16},
    "minicpm3": {
        **{key: LATENT[key] for key in ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim")},
        "qk_rope_head_dim": LATENT["qk_rope_head_dim"],
        "num_key_value_heads": 4,
        "scale_emb": 3,
        "dim_model_base": 16,
    },
    "ernie4_5": {"head_dim": 12, "pad_token_id": 0},
    "minimax_m2": {
        "head_dim": 16,
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "intermediate_size": 24,
        "rotary_dim": 8,
    },
    "glm4_moe_lite": {**LATENT, "num_key_value_heads": 4},
    "axk1": {**LATENT, "mlp_layer_types": ["dense", "sparse"]},
    "youtu": LATENT_ATTENTION,
    "opt": {"pad_token_id": 1},
    "gpt_neox": {"num_attention_heads": 2, "rotary_pct": 0.25},
    "cohere": {"logit_scale": 0.5, "pad_token_id": 0},
    "cohere2": {
        "logit_scale": 0.5,
        "pad_token_id": 0,
        "num_hidden_layers": 4,
        "sliding_window": 16,
    },
    "glm4": {"head_dim": 16, "pad_token_id": 0},
    "glm": {"head_dim": 16, "pad_token_id": 0},
    "stablelm": {"partial_rotary_factor": 0.5},
    "nemotron": {"head_dim": 12},
    "olmo3": {"pad_token_id": 0, "num_hidden_layers": 4, "sliding_window": 16},
    "modernbert_decoder": {
        "pad_token_id": 0,
        "num_hidden_layers": 4,
        "local_attention": 20,
        "sliding_window": 16,
    },
    "smollm3": {"pad_token_id": 0, "num_hidden_layers": 4},
    "exaone4": {"num_hidden_layers": 4, "sliding_window": 16},
    "lfm2": {**CONVOLUTIONS, "block_auto_adjust_ff_dim": False},
    "qwen3_next": {**DELTA, **SHARED_EXPERTS},
    "qwen3_5": DELTA,
    "qwen3_5_moe": {**DELTA, **SHARED_EXPERTS},
    "granite_hybrid": {
        **GRANITE_SIZES,
        **MAMBA2,
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        **LOCAL,
        "shared_intermediate_size": 20,
    },
    "nemotron_h": {
        "layers_block_type": [
            "linear_attention",
            "mlp",
            "linear_attention",
            "full_attention",
            "mlp",
        ],
        "head_dim": 12,
        "mamba_num_heads": 4,
        "mamba_head_dim": 12,
        "n_groups": 2,
        "ssm_state_size": 10,
    },
    "falcon_h1": {
        **MAMBA2,
        "mamba_d_ssm": 40,
        "mamba_d_head": 10,
        "pad_token_id": 0,
        "embedding_multiplier": 3.0,
        "lm_head_multiplier": 0.6,
        "key_multiplier": 0.7,
        "attention_in_multiplier": 1.3,
        "attention_out_multiplier": 0.8,
        "ssm_in_multiplier": 1.2,
        "ssm_out_multiplier": 0.9,
        "ssm_multipliers": [0.8, 0.9, 1.1, 0.7, 1.2],
        "mlp_multipliers": [0.9, 1.1],
    },
    "hunyuan": {"head_dim": 12},
    "mamba": SELECTIVE,
    "falcon_mamba": SELECTIVE,
    "jamba": {
        "num_hidden_layers": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "mamba_d_state": 12,
        "mamba_dt_rank": 5,
        "pad_token_id": 0,
    },
    "lfm2_moe": {**CONVOLUTIONS, "num_dense_layers": 1, **EXPERTS},
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 2, "state_size": 12},
    "bamba": {**MAMBA2, "num_hidden_layers": 3, "attn_layer_indices": [1]},
    "llama4": {
        "head_dim": 12,
        "num_hidden_layers": 4,
        "intermediate_size_mlp": 40,
        "interleave_moe_layer_step": 2,
        "num_local_experts": 6,
        "num_experts_per_tok": 1,
        "attention_chunk_size": 512,
        "floor_scale": 20,
        "attn_scale": 0.3,
        "pad_token_id": 0,
    },
    "gpt_oss": {
        "head_dim": 12,
        **LOCAL,
        "sliding_window": 16,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 8.0,
            "truncate": False,
            "original_max_position_embeddings": 64,
        },
    },
}
# Families whose config.json has other names for these sizes.
OWN_NAMES: dict[str, dict[str, str | None]] = {
    **dict.fromkeys(
        ("mamba", "falcon_mamba", "mamba2"),
        dict.fromkeys(("intermediate_size", "num_attention_heads", "num_key_value_heads")),
    ),
    **{
        key: {
            "intermediate_size": None,
            "num_key_value_heads": None,
            "hidden_size": "d_model",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "max_position_embeddings": "max_seq_len",
        }
        for key in ("mpt", "dbrx")
    },
    "gpt2": {
        "hidden_size": "n_embd",
        "intermediate_size": "n_inner",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "num_key_value_heads": None,
        "max_position_embeddings": "n_positions",
    },
    "gpt_neox": {"num_key_value_heads": None},
    "bloom": {
        "intermediate_size": None,
        "num_key_value_heads": None,
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "seq_length",
    },
    "modernbert_decoder": {"num_key_value_heads": None},
    "opt": {
        "intermediate_size": "ffn_dim",
        "num_key_value_heads": None,
        "initializer_range": "init_std",
    },
}


def tiny_settings(family: str, **overrides: Any) -> dict[str, Any]:
    """config.json of a tiny model."""
    given = {**SIZES, **OWN_SIZES.get(family, {}), **overrides}
    names = {name: OWN_NAMES.get(family, {}).get(name, name) for name in given}
    named = ((names[name], value) for name, value in given.items())
    return {name: value for name, value in named if name is not None}


def own_settings(family: str) -> dict[str, str | None]:
    """The family's names for common config keys; None: it has no such key."""
    return OWN_NAMES.get(family, {})
