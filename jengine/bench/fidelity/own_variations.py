"""Each family's deviations from the common variations of a config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jengine.bench.fidelity.own_draws import (
    draw_alibi_scores,
    draw_bamba,
    draw_dbrx,
    draw_falcon,
    draw_gemma4,
    draw_latent_layers,
    draw_mamba2,
    draw_methods,
    draw_moe_layers,
    draw_nemotron_h,
    draw_no_rope,
    draw_proportional,
    draw_rotary_part,
    draw_shared_blocks,
    draw_short_queries,
    draw_two_ropes,
    draw_zamba2,
)
from jengine.bench.fidelity.variations import (
    EVEN,
    FLAGS,
    HEADS_DIVIDE,
    KINDS,
    LATENT_KEYS,
    PATTERN,
    TURNS_PART,
    Settings,
    Variation,
    mixed_layers,
)


class Own(NamedTuple):
    """A family's deviations from the common variations."""

    choices: Mapping[str, Sequence[Any]] = {}
    without: tuple[str, ...] = ()  # keys that stay as they are
    variations: tuple[Variation, ...] = ()  # in place of those with the same first key
    marks: Settings = {}  # for shared variations


MIXED_DELTA = Variation(("num_hidden_layers", "layer_types"), mixed_layers("linear_attention"))
SLIDING_PATTERN = {PATTERN: True}
DIVIDED = Own(marks={HEADS_DIVIDE: True})
TWO_ROPES = Variation(("rope_parameters",), draw_two_ropes)
NO_HEAD_DIM = Own(without=("head_dim",))
PARTIAL = Own(marks={TURNS_PART: True})
GLM = Own({"eos_token_id": (2, [3, 5])}, marks=PARTIAL.marks)
SILU = {"hidden_act": ("silu",)}
SCANS = {
    **SILU, "state_size": (5, 12, 16), "hidden_size": (20, 33, 48), "expand": (1, 2),
    "time_step_rank": ("auto", 3, 5),
}  # fmt: skip
DEEPSEEK_ROPES = {KINDS: ("default", "yarn")}
DELTA = Own(SILU, marks=PARTIAL.marks, variations=(MIXED_DELTA,))
GEMMA4_KEYS = (
    "num_kv_shared_layers", "use_double_wide_mlp", "attention_k_eq_v", "global_head_dim",
    "num_global_key_value_heads", "vocab_size_per_layer_input",
)  # fmt: skip
FALCON_KEYS = (
    "mamba_n_heads", "mamba_n_groups", "mamba_d_head", "mamba_d_ssm", "projectors_bias",
)  # fmt: skip
NOTHING = Own()
OWN: Mapping[str, Own] = {
    "llama": DIVIDED,
    "arcee": DIVIDED,
    "gemma": Own(without=("hidden_act", "hidden_activation")),
    "gemma2": Own(marks={**SLIDING_PATTERN, **DIVIDED.marks}),
    "gemma3": Own(
        marks={**SLIDING_PATTERN, **DIVIDED.marks}, variations=(TWO_ROPES,),
        without=("attn_logit_softcapping",),
    ),
    "gemma4": Own(
        {"rms_norm_eps": (1e-2, 1e-3)},
        variations=(
            Variation(("rope_parameters",), draw_proportional),
            Variation(GEMMA4_KEYS, draw_gemma4),
        ),
        without=("num_hidden_layers",),
    ),
    "phi3": Own(without=("head_dim",), marks={KINDS: ("default", "longrope"), **PARTIAL.marks}),
    "gpt2": NO_HEAD_DIM,
    "gpt_neox": Own(without=("head_dim", "num_key_value_heads"), marks=PARTIAL.marks),
    "opt": NO_HEAD_DIM,
    "olmoe": NO_HEAD_DIM,  # its norms are as wide as the hidden size
    "bloom": NO_HEAD_DIM,
    "mpt": Own(
        without=("head_dim", "logit_scale"),
        variations=(Variation(("attn_config",), draw_alibi_scores),),
    ),
    "phi": Own(marks=PARTIAL.marks, without=("tie_word_embeddings",)),
    "stablelm": Own(without=("head_dim",), marks=PARTIAL.marks),
    "glm": GLM, "glm4": GLM, "glm4_moe": PARTIAL, "nemotron": PARTIAL,
    "qwen2_moe": Own(without=("sliding_window",)),
    "deepseek_v2": Own(
        marks={**DEEPSEEK_ROPES, HEADS_DIVIDE: True, EVEN: True},
        variations=(Variation(("topk_method",), draw_methods),),
        without=("norm_topk_prob", "mlp_bias", "rope_interleave"),
    ),
    "deepseek_v3": Own(marks=DEEPSEEK_ROPES),
    "glm4_moe_lite": Own(
        marks=DEEPSEEK_ROPES, variations=(Variation(("mlp_layer_types",), draw_latent_layers),),
        without=("first_k_dense_replace",),
    ),
    "axk1": Own(
        marks=DEEPSEEK_ROPES,
        variations=(
            Variation(LATENT_KEYS, draw_short_queries),
            Variation(("mlp_layer_types",), draw_latent_layers),
        ),
        without=("first_k_dense_replace",),
    ),
    "youtu": Own(marks=DEEPSEEK_ROPES),
    "minicpm3": Own(
        marks={KINDS: ("default", "longrope"), HEADS_DIVIDE: True},
        without=("rope_interleave", "mlp_bias"),
    ),
    "gpt_oss": Own(SILU, marks={**SLIDING_PATTERN, KINDS: ("default", "yarn")}),
    "llama4": Own(
        {"attention_chunk_size": (16, 32, 512)},
        variations=(
            Variation(("no_rope_layers", "no_rope_layer_interval"), draw_no_rope),
            Variation(("interleave_moe_layer_step",), draw_moe_layers),
        ),
    ),
    "smollm3": Own(
        variations=(Variation(("no_rope_layers", "no_rope_layer_interval"), draw_no_rope),),
        without=("sliding_window",),
    ),
    "zamba2": Own(
        {"adapter_rank": (3, 6), "add_bias_linear": FLAGS, "use_mem_rope": FLAGS},
        variations=(
            Variation(
                ("num_hidden_layers", "layers_block_type", "num_mem_blocks"), draw_shared_blocks
            ),
            Variation(
                ("n_mamba_heads", "mamba_ngroups", "mamba_expand", "use_shared_attention_adapter"),
                draw_zamba2,
            ),
        ),
        without=("head_dim", "use_conv_bias", "tie_word_embeddings"),
    ),
    "bitnet": Own(without=("head_dim",)),  # its norm is as wide as the hidden size
    "dbrx": Own(
        variations=(Variation(("attn_config", "ffn_config"), draw_dbrx),),
        without=("head_dim", "hidden_act", "tie_word_embeddings"),
    ),
    "apertus": Own({"hidden_act": ("xielu", "silu", "relu2")}),
    "mamba2": Own(
        {**SILU, "state_size": (5, 12, 16)},
        variations=(Variation(("num_heads", "n_groups", "head_dim", "expand"), draw_mamba2),),
    ),
    "mamba": Own(SCANS),
    "falcon_mamba": Own({**SCANS, "mixer_rms_eps": (1e-6, 1e-3)}),
    "jamba": Own(
        {
            **SILU, "attn_layer_period": (2, 3), "attn_layer_offset": (0, 1),
            "expert_layer_period": (2, 3), "expert_layer_offset": (0, 1),
            "mamba_dt_rank": ("auto", 3, 5), "mamba_expand": (1, 2),
        },
        without=("head_dim", "rope_parameters"),
    ),
    "lfm2_moe": Own(
        {"num_dense_layers": (0, 1), "use_expert_bias": (False, True)},
        variations=(Variation(("num_hidden_layers", "layer_types"), mixed_layers("conv")),),
        without=("hidden_act", "use_bias"),
    ),
    "modernbert_decoder": Own(
        {"classifier_activation": ("gelu", "silu"), "classifier_bias": FLAGS,
         "decoder_bias": FLAGS, "norm_bias": FLAGS,
         "bos_token_id": (0, 1, 80)},  # transformers takes no null here
        marks=SLIDING_PATTERN, variations=(TWO_ROPES,),
    ),
    "cohere2": Own(marks=SLIDING_PATTERN, without=("use_qk_norm",)),
    "olmo3": Own(marks=SLIDING_PATTERN, variations=(TWO_ROPES,)),
    "exaone4": Own(marks=SLIDING_PATTERN),
    "lfm2": Own(
        variations=(Variation(("num_hidden_layers", "layer_types"), mixed_layers("conv")),),
        without=("hidden_act",),
    ),
    "bamba": Own(
        SILU, marks=PARTIAL.marks,
        variations=(Variation(("num_hidden_layers", "attn_layer_indices"), draw_bamba),),
    ),
    "granite_hybrid": Own(
        {**SILU, "position_embedding_type": ("rope", "nope")}, variations=(MIXED_DELTA,)
    ),
    "nemotron_h": Own(
        {"mamba_hidden_act": ("silu",)},
        variations=(Variation(("mamba_num_heads", "n_groups", "mamba_head_dim"), draw_nemotron_h),),
        # transformers saves a head of its own where the config ties it.
        without=("rope_parameters", "num_hidden_layers", "tie_word_embeddings"),
    ),
    "falcon_h1": Own(
        SILU, variations=(Variation(FALCON_KEYS, draw_falcon),),
        without=("mamba_proj_bias",),
    ),
    "qwen3_next": DELTA,
    "qwen3_5": DELTA,
    "qwen3_5_moe": DELTA._replace(without=(*DELTA.without, "norm_topk_prob")),
    "minimax_m2": Own(
        variations=(Variation(("rope_parameters", "rotary_dim"), draw_rotary_part),),
        without=("shared_intermediate_size", "norm_topk_prob"),
    ),
}  # fmt: skip
