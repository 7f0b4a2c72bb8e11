"""config.json keys under the names that most families use."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.models.importing.meanings import Meaning
from jengine.models.reading.hf_rope import PARTIAL

# Key -> the usual key.
ALIASES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "ffn_hidden_size": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "n_ctx": "max_position_embeddings",
    "layer_norm_eps": "rms_norm_eps",
    "layer_norm_epsilon": "rms_norm_eps",
    "norm_epsilon": "rms_norm_eps",
    "norm_eps": "rms_norm_eps",
    "hidden_activation": "hidden_act",
    "activation_function": "hidden_act",
    "activation": "hidden_act",
    "rotary_pct": PARTIAL,
    "rotary_emb_base": "rope_theta",
    "moe_topk": "num_experts_per_tok",
    "moe_k": "num_experts_per_tok",
    "num_experts_per_token": "num_experts_per_tok",
}
# Keys that tensors show, so that their values are not needed.
SHOWN_BY_TENSORS = {
    "attention_bias", "mlp_bias", "qkv_bias", "use_bias", "bias", "use_qk_norm", "qk_norm",
    "qk_layernorm", "tie_word_embeddings", "parallel_attn", "use_parallel_residual",
    "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts",
    "n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert",
    "moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size",
    "first_k_dense_replace", "mlp_layer_types", "decoder_sparse_step", "mlp_only_layers",
    "num_dense_layers", "intermediate_size", "ffn_hidden_size", "n_inner", "n_ctx",
}  # fmt: skip


def by_usual_names(hf: Mapping[str, object], meaning: Meaning) -> Mapping[str, object]:
    """Add each aliased key under its usual name."""
    names = {**ALIASES, **meaning.keys}
    found = {  # if several aliases are present, the first in the table
        ours: hf[name]
        for name, ours in reversed(names.items())
        if hf.get(name) is not None and hf.get(ours) is None
    }
    made = {**hf, **found}
    if made.get("multi_query") is True and not made.get("new_decoder_architecture"):
        made["num_key_value_heads"] = 1
    rotated, heads = made.get("rotary_dim"), made.get("num_attention_heads")
    if type(rotated) is int and type(heads) is int and type(made.get("hidden_size")) is int:
        made[PARTIAL] = rotated / (made["hidden_size"] // heads)  # pyrefly: ignore
    return made
