"""Hypothesis strategies for config keys that publishers vary, shared between families.

`CHOICES` has the keys that vary by themselves; a `Variation` draws keys that depend on each other,
or on what was drawn before. Either applies to the families that read its keys. Must not know
families by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

Settings = dict[str, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]

FLAGS = (False, True)
EPSILONS = (1e-6, 1e-5, 1e-3, 1e-2)
FACTORS = (0.5, 0.8, 1.0, 1.3)
MULTIPLIERS = (0.6, 1.0, 1.7)
ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "gelu_new", "gelu_fast", "relu", "relu2")
WIDTHS = (17, 31, 48, 50, 63, 80, 96)
WINDOWS = (1, 5, 9, 16, 31, 100)
EXPERTS = (1, 2, 3, 6, 8)
CHOICES: Mapping[str, Sequence[Any]] = {
    **dict.fromkeys(
        (
            "tie_word_embeddings",
            "attention_bias",
            "attention_out_bias",
            "mlp_bias",
            "use_bias",
            "qkv_bias",
            "use_qkv_bias",
            "conv_bias",
            "enable_bias",
            "mamba_conv_bias",
            "mamba_proj_bias",
            "use_conv_bias",
            "use_qk_norm",
            "use_parallel_residual",
            "norm_topk_prob",
            "scale_attn_weights",
            "mamba_rms_norm",
            "mamba_norm_before_gate",
            "rope_interleave",
            "attn_temperature_tuning",
            "block_auto_adjust_ff_dim",
        ),
        FLAGS,
    ),
    **dict.fromkeys(
        ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon"),
        EPSILONS,
    ),
    **dict.fromkeys(
        ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act"), ACTIVATIONS
    ),
    **dict.fromkeys(
        (
            "intermediate_size",
            "intermediate_size_mlp",
            "ffn_dim",
            "n_inner",
            "moe_intermediate_size",
            "shared_expert_intermediate_size",
            "shared_intermediate_size",
        ),
        WIDTHS,
    ),
    **dict.fromkeys(
        (
            "embedding_multiplier",
            "residual_multiplier",
            "logits_scaling",
            "lm_head_multiplier",
            "key_multiplier",
            "attention_in_multiplier",
            "attention_out_multiplier",
            "ssm_in_multiplier",
            "ssm_out_multiplier",
        ),
        MULTIPLIERS,
    ),
    "vocab_size": (89, 97, 100, 127, 131),
    "bos_token_id": (None, 0, 1, 80),
    "eos_token_id": (None, 2, [3, 5]),
    "max_position_embeddings": (50, 64, 512),
    "attention_multiplier": (0.05, 0.11, 0.25),
    "logit_scale": (0.0625, 0.5, 1.7),
    "query_pre_attn_scalar": (12, 20, 64),
    "attn_logit_softcapping": (None, 2.0, 50.0),
    "final_logit_softcapping": (None, 3.0, 30.0),
    "ssm_multipliers": ([0.8, 0.9, 1.1, 0.7, 1.2], [1.0] * 5),
    "mlp_multipliers": ([0.9, 1.1], [1.3, 0.7]),
    "routed_scaling_factor": (0.7, 1.0, 2.5),
    "scale_emb": (1, 3, 12),
    "scale_depth": (1.0, 1.4),
    "dim_model_base": (16, 40),
    "floor_scale": (7, 20),
    "attn_scale": (0.1, 0.3),
    "conv_L_cache": (2, 3, 4),
    "mamba_d_conv": (2, 3, 4),
    "conv_kernel": (2, 3, 4),
    "linear_conv_kernel_dim": (2, 3, 4),
    "mamba_d_state": (5, 12, 16),
    "ssm_state_size": (5, 10, 16),
    "time_step_limit": ([0.0, float("inf")], [0.2, 1.1]),
    "time_step_min": (0.001, 0.3),
    "n_shared_experts": (0, 1, 2),
    "block_multiple_of": (8, 20),
    "block_ffn_dim_multiplier": (1.0, 1.3),
    "hidden_size_per_layer_input": (0, 6, 9),
    "shared_experts": (0, 1, 2),
}
# KV heads, and queries of each.
SHARED_HEADS = (
    (1, 1),
    (4, 1),
    (3, 1),
    (1, 4),
    (1, 3),
    (2, 2),
    (2, 3),
    (1, 5),
    (1, 7),
    (3, 2),
    (2, 5),
)
HEAD_SIZES = (8, 12, 16, 24, 40, 64, 80, 96, 128, 192, 256)
HIDDEN_SIZES = (20, 32, 33, 37, 48, 60, 75, 96)
# The widest sum of heads that is drawn where it is the hidden size.
MOST_HIDDEN = 400


# Settings that say of a family what variations need to know, and config.json does not.
HEADS_DIVIDE = "the hidden size is a multiple of the heads"
TURNS_PART = "part of a head may be rotated"
PATTERN = "layers have a pattern"
KINDS = "kinds of ropes"
EVEN = "transformers views neighbours as complex numbers, whose strides are even"
MARKS = frozenset((EVEN, HEADS_DIVIDE, TURNS_PART, PATTERN, KINDS))


class Variation(NamedTuple):
    """Keys that are drawn together. Applies to families that read the first of them."""

    keys: tuple[str, ...]
    draw: Callable[[Draw, Settings, Collection[str]], Settings]


def one_of(draw: Draw, values: Sequence[Any]) -> Any:
    """Draw one of these values."""
    return draw(st.sampled_from(values))


def draw_heads(draw: Draw, settings: Settings, read: Collection[str]) -> Settings:
    """GQA head counts, with a head size where the family has the key."""
    if "num_key_value_heads" in read:
        kv, group = one_of(draw, SHARED_HEADS)
    else:
        kv, group = one_of(draw, (1, 2, 3, 4, 5, 7)), 1
    found = {"num_attention_heads": kv * group, "num_key_value_heads": kv}
    if "head_dim" in read:
        hidden = one_of(draw, HIDDEN_SIZES)
        if settings.get(HEADS_DIVIDE):
            hidden = kv * group * one_of(draw, (5, 8, 11, 16))
        return {**found, "head_dim": one_of(draw, HEAD_SIZES), "hidden_size": hidden}
    fitting = [size for size in HEAD_SIZES if size * kv * group <= MOST_HIDDEN]
    return {**found, "hidden_size": kv * group * one_of(draw, fitting)}


def draw_latent(draw: Draw, settings: Settings, read: Collection[str]) -> Settings:
    """Latent attention (MLA), where the number of KV heads equals that of heads."""
    heads, hidden = one_of(draw, (1, 2, 3, 4, 5)), one_of(draw, HIDDEN_SIZES)
    even = settings.get(EVEN, False)
    if settings.get(HEADS_DIVIDE):
        hidden = heads * one_of(draw, (8, 13, 16))
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "hidden_size": hidden,
        "kv_lora_rank": one_of(draw, (8, 20) if even else (8, 20, 33)),
        "q_lora_rank": one_of(draw, (None, 12, 24, 31)),
        "qk_nope_head_dim": one_of(draw, (8, 12, 32) if even else (8, 12, 19, 32)),
        "qk_rope_head_dim": one_of(draw, (4, 8, 16)),
        "v_head_dim": one_of(draw, (8, 10, 24, 31)),
    }


def draw_layers(draw: Draw, settings: Settings, read: Collection[str]) -> Settings:
    """Number of layers."""
    return {"num_hidden_layers": one_of(draw, (1, 2, 3, 4))}


def draw_experts(draw: Draw, settings: Settings, read: Collection[str]) -> Settings:
    """Experts per token out of all, optionally group-limited."""
    name = next(one for one in EXPERT_COUNTS if one in settings)
    if "n_group" not in settings:
        count = one_of(draw, EXPERTS)
        return {name: count, "num_experts_per_tok": draw(st.integers(1, count))}
    groups = one_of(draw, (1, 2, 4))
    taken = draw(st.integers(1, groups))
    count = groups * one_of(draw, (2, 3))
    per_token = draw(st.integers(1, count // groups * taken))
    return {name: count, "n_group": groups, "topk_group": taken, "num_experts_per_tok": per_token}


EXPERT_COUNTS = ("n_routed_experts", "num_local_experts", "num_experts")


def draw_rope(draw: Draw, settings: Settings, read: Collection[str]) -> Settings:
    """RoPE of a published type, full or partial."""
    share = one_of(draw, _shares(settings)) if settings.get(TURNS_PART) else None
    rotated = int(head_size(settings) * (share or 1.0))
    kinds = settings.get(KINDS, USUAL_ROPES)
    rope = ROPES[one_of(draw, kinds)](draw, rotated // 2)
    rope["rope_theta"] = one_of(draw, (500.0, 1e4, 5e5))
    return {"rope_parameters": rope if share is None else {**rope, "partial_rotary_factor": share}}


def head_size(settings: Settings) -> int:
    """Head dimensions that RoPE may rotate."""
    if "qk_rope_head_dim" in settings:
        return settings["qk_rope_head_dim"]
    return settings.get("head_dim") or settings["hidden_size"] // settings["num_attention_heads"]


def _shares(settings: Settings) -> list[float]:
    size = head_size(settings)
    return [share for share in (0.25, 0.5, 0.75, 1.0) if not int(size * share) % 2 and size * share]


def _scaled(draw: Draw, kind: str) -> Settings:
    return {"rope_type": kind, "factor": one_of(draw, (1.0, 2.0, 8.0))}


def _llama3(draw: Draw, pairs: int) -> Settings:
    return {
        **_scaled(draw, "llama3"),
        "low_freq_factor": 1.0,
        "high_freq_factor": one_of(draw, (2.0, 4.0)),
        "original_max_position_embeddings": one_of(draw, (16, 64)),
    }


def _yarn(draw: Draw, pairs: int) -> Settings:
    optional = {
        "beta_fast": one_of(draw, (None, 6.0, 32.0)),
        "beta_slow": one_of(draw, (None, 1.0, 2.0)),
        "truncate": one_of(draw, (None, False, True)),
        "attention_factor": one_of(draw, (None, None, 0.9)),
    }
    if draw(st.booleans()):
        optional |= {
            "mscale": one_of(draw, (0.707, 1.0)),
            "mscale_all_dim": one_of(draw, (0.5, 1.0)),
        }
    return {
        **_scaled(draw, "yarn"),
        "original_max_position_embeddings": one_of(draw, (16, 64)),
        **{key: value for key, value in optional.items() if value is not None},
    }


def _longrope(draw: Draw, pairs: int) -> Settings:
    def factors(least: float) -> list[float]:
        return [least + 0.1 * pair for pair in range(pairs)]

    return {
        "rope_type": "longrope",
        "short_factor": factors(1.0),
        "long_factor": factors(1.5),
        # Longer than all that is asked, or shorter: which factors count is the same for all tokens.
        "original_max_position_embeddings": one_of(draw, (8, 256)),
        "factor": one_of(draw, (2.0, 8.0)),
    }


ROPES: Mapping[str, Callable[[Draw, int], Settings]] = {
    "default": lambda draw, pairs: {"rope_type": "default"},
    "linear": lambda draw, pairs: _scaled(draw, "linear"),
    "dynamic": lambda draw, pairs: _scaled(draw, "dynamic"),
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
USUAL_ROPES = ("default", "linear", "dynamic", "llama3", "yarn")


def draw_window(draw: Draw, settings: Settings, read: Collection[str]) -> Settings:
    """Sliding windows: on all layers, after the first ones, by a pattern, or none."""
    window = one_of(draw, WINDOWS)
    layers = settings["num_hidden_layers"]
    types = {
        "layer_types": draw(st.lists(st.sampled_from(TYPES), min_size=layers, max_size=layers))
    }
    if "max_window_layers" in read:
        used = draw(st.booleans())
        found = {"use_sliding_window": used, "sliding_window": window}
        if used and draw(st.booleans()):
            return {**found, **types}
        return {**found, "layer_types": None, "max_window_layers": draw(st.integers(0, layers))}
    if "use_sliding_window" in read:
        return {"use_sliding_window": draw(st.booleans()), "sliding_window": window}
    if settings.get(PATTERN):
        return {
            "sliding_window": window,
            **(types if draw(st.booleans()) else {"layer_types": None}),
        }
    return {"sliding_window": one_of(draw, (None, window))}


TYPES = ("full_attention", "sliding_attention")


def draw_mamba(draw: Draw, settings: Settings, read: Collection[str]) -> Settings:
    """Mamba-2 heads that divide its width, and groups that divide the heads."""
    expand = one_of(draw, (1, 2))
    width = expand * settings["hidden_size"]
    heads = one_of(draw, [heads for heads in (1, 2, 3, 4, 6, 8) if not width % heads])
    groups = one_of(draw, [groups for groups in (1, 2, 3, 4) if not heads % groups])
    dim = one_of(draw, ("auto", width // heads))
    return {"mamba_n_heads": heads, "mamba_n_groups": groups, "mamba_d_head": dim,
            "mamba_expand": expand}  # fmt: skip


def draw_delta(draw: Draw, settings: Settings, read: Collection[str]) -> Settings:
    """Gated DeltaNet heads; several value heads may share a key head."""
    keys, share = one_of(draw, (1, 2, 3)), one_of(draw, (1, 2, 3))
    return {
        "linear_num_key_heads": keys,
        "linear_num_value_heads": keys * share,
        "linear_key_head_dim": one_of(draw, (8, 16, 20, 32)),
        "linear_value_head_dim": one_of(draw, (8, 16, 24, 30)),
    }


def draw_sparse(draw: Draw, settings: Settings, read: Collection[str]) -> Settings:
    """Which layers are MoE."""
    layers = settings["num_hidden_layers"]
    dense = draw(st.lists(st.integers(0, layers - 1), unique=True, max_size=layers - 1))
    return {"decoder_sparse_step": one_of(draw, (1, 1, 2)), "mlp_only_layers": sorted(dense)}


def draw_dense(draw: Draw, settings: Settings, read: Collection[str]) -> Settings:
    """Number of dense layers before the MoE layers."""
    return {"first_k_dense_replace": draw(st.integers(0, settings["num_hidden_layers"]))}


def mixed_layers(
    recurrent: str, *, key: str = "layer_types"
) -> Callable[[Draw, Settings, Collection[str]], Settings]:
    """Attention layers among layers without attention."""

    def chosen(draw: Draw, settings: Settings, read: Collection[str]) -> Settings:
        rest = st.lists(st.sampled_from((recurrent, "full_attention")), max_size=2)
        kinds = draw(st.permutations([recurrent, "full_attention", *draw(rest)]))
        return {key: list(kinds), "num_hidden_layers": len(kinds)}

    return chosen


HEAD_KEYS = ("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size")
LATENT_KEYS = (
    "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
)  # fmt: skip
WINDOW_KEYS = ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types")
DELTA_KEYS = (
    "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
    "linear_value_head_dim",
)  # fmt: skip
VARIATIONS: tuple[Variation, ...] = (
    Variation(("num_hidden_layers",), draw_layers),
    Variation(HEAD_KEYS, draw_heads),
    Variation(LATENT_KEYS, draw_latent),
    Variation(("rope_parameters",), draw_rope),
    Variation(WINDOW_KEYS, draw_window),
    Variation(("num_experts_per_tok", *EXPERT_COUNTS, "n_group", "topk_group"), draw_experts),
    Variation(("decoder_sparse_step", "mlp_only_layers"), draw_sparse),
    Variation(("first_k_dense_replace",), draw_dense),
    Variation(("mamba_n_heads", "mamba_n_groups", "mamba_d_head", "mamba_expand"), draw_mamba),
    Variation(DELTA_KEYS, draw_delta),
)
