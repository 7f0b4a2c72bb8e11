"""Maps GGUF's module names to a family's.

In: a ModelConfig. Out: a mapping from GGUF modules to checkpoint modules. Must not know files.
"""

from __future__ import annotations

from jengine.config import PLACES, ModelConfig
from jengine.models import registry
from jengine.models.tensors.checkpoint import Names
from jengine.models.tensors.latent_pieces import MODULES

SHORT_CONV = ("conv", "in_proj", "out_proj")
RECURRENT = {
    "ssm_in": "in_proj",
    "ssm_ba": "in_proj_ba",
    "ssm_beta": "in_proj_b",
    "ssm_alpha": "in_proj_a",
    "attn_gate": "in_proj_z",
    "attn_qkv": "in_proj_qkv",
    "ssm_conv1d": "conv1d",
    "ssm_norm": "norm",
    "ssm_out": "out_proj",
}
# Those whose checkpoint names have no ending.
RECURRENT_WHOLE = {"ssm_a": "A_log", "ssm_d": "D", "ssm_dt.bias": "dt_bias"}
LATENT = {
    "attn_q_a": "q_down",
    "attn_q_a_norm": "q_norm",
    "attn_kv_a_mqa": "kv_down",
    "attn_kv_a_norm": "kv_norm",
    "attn_kv_b": "kv_up",
}


def whole_modules(names: Names) -> dict[str, str]:
    """Modules outside layers."""
    prefix = names.prefix
    return {
        "token_embd": prefix + names.embed,
        "position_embd": prefix + names.positions,
        "token_embd_norm": prefix + names.embed_norm,
        "token_types": prefix + names.types,
        "per_layer_token_embd": prefix + names.layer_inputs,
        "per_layer_model_proj": prefix + names.layer_inputs_project,
        "per_layer_proj_norm": prefix + names.layer_inputs_norm,
        "output_norm": prefix + names.final_norm,
        "output": names.head,
    }


def layer_modules(config: ModelConfig) -> dict[str, str]:
    """Modules of a layer, except stacked experts."""
    names = registry.tensor_names(config)
    # Some call the norm between attention and MLP by the first, and some by the second.
    between = names.after_attention if "after" in PLACES[config.norm_places] else names.before_mlp
    return {
        "attn_norm": names.before_attention,
        "post_attention_norm": between,
        "ffn_norm": names.before_mlp,
        "post_ffw_norm": names.after_mlp,
        "attn_output_norm": names.after_attention,
        "layer_output_norm": names.after_mlp,
        "inp_gate": names.ending_gate,
        "proj": names.ending_out,
        "post_norm": names.ending_norm,
        "attn_output": names.attention_out,
        "attn_q_norm": names.q_norm,
        "attn_k_norm": names.k_norm,
        **{f"shortconv.{name}": f"{names.recurrent}.{name}" for name in SHORT_CONV},
        **{theirs: f"{names.recurrent}.{ours}" for theirs, ours in RECURRENT.items()},
        "ffn_down": names.down,
        "ffn_gate_inp": names.router,
        "ffn_gate_inp_shexp": names.shared_gate,
        "ffn_down_shexp": names.shared_down,
        **_parts(("attn_q", "attn_k", "attn_v"), "attn_qkv", names.qkv),
        **_parts(("ffn_gate", "ffn_up"), "ffn_up", names.gate_up),
        **_parts(("ffn_gate_shexp", "ffn_up_shexp"), "ffn_up_shexp", names.shared_gate_up),
        **{theirs: f"self_attn.{MODULES[ours]}" for theirs, ours in LATENT.items()},
        "attn_q_b": "self_attn.q_b_proj",
    }


def whole_names(config: ModelConfig) -> dict[str, str]:
    """Layer tensors whose names have no suffix, in files or in checkpoints."""
    names = registry.tensor_names(config)
    return {
        "attn_sinks.weight": names.sinks,
        "exp_probs_b.bias": names.choice_bias,
        "layer_output_scale.weight": names.layer_factor,
        "ffn_norm": f"{names.before_mlp}.weight",  # so in files of Falcon-H1
        **{theirs: f"{names.recurrent}.{ours}" for theirs, ours in RECURRENT_WHOLE.items()},
    }


def _parts(apart: tuple[str, ...], together: str, theirs: tuple[str, ...]) -> dict[str, str]:
    """Modules stored separately, or fused in checkpoints."""
    return dict(zip(apart, theirs, strict=True)) if len(theirs) > 1 else {together: theirs[0]}
