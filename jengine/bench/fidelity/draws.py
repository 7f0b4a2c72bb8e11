"""Random configs of a family: its tiny config, with every key varied that its config reader
reads.

Out: settings as transformers' config class takes them, the same for the same seed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from jengine.bench.fidelity.families import FAMILIES, own_settings, tiny_settings
from jengine.bench.fidelity.variations import (
    ACTIVATIONS,
    CHOICES,
    EVEN,
    EXPERTS,
    FLAGS,
    HEADS_DIVIDE,
    KINDS,
    LATENT_KEYS,
    MARKS,
    PATTERN,
    TURNS_PART,
    VARIATIONS,
    WIDTHS,
    Draw,
    Settings,
    Variation,
    draw_latent,
    draw_rope,
    mixed_layers,
    one_of,
)
from jengine.errors import CheckpointError
from jengine.models.unread import read_keys

# Hypothesis begins with the simplest example, which is the same for every seed.
EXAMPLES = 3


class Own(NamedTuple):
    """A family's deviations from the common variations."""

    choices: Mapping[str, Sequence[Any]] = {}
    without: tuple[str, ...] = ()  # keys that stay as they are
    variations: tuple[Variation, ...] = ()  # in place of those with the same first key
    marks: Settings = {}  # for shared variations


def draw_two_ropes(draw: Draw, given: Settings, read: Collection[str]) -> Settings:
    """RoPE parameters of full and of sliding-window layers."""
    return {
        "rope_parameters": {
            f"{kind}_attention": draw_rope(draw, given, ())["rope_parameters"]
            for kind in ("full", "sliding")
        }
    }


def draw_proportional(draw: Draw, given: Settings, read: Collection[str]) -> Settings:
    """Gemma 4's RoPE: partial rotation in full layers, whole heads in sliding-window layers."""
    share = one_of(draw, (0.25, 0.5, 1.0))
    return {
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional", "partial_rotary_factor": share, "rope_theta": 1e6
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": one_of(draw, (500.0, 1e4))},
        }
    }  # fmt: skip


def draw_gemma4(draw: Draw, given: Settings, read: Collection[str]) -> Settings:
    """Mixed layer types, of which the last share earlier layers' KV, with dependent keys."""
    shared = one_of(draw, (0, 1, 3))
    found = {
        "num_hidden_layers": 6,
        "num_kv_shared_layers": shared,
        "use_double_wide_mlp": shared > 0 and draw(st.booleans()),
        "attention_k_eq_v": draw(st.booleans()),
        "global_head_dim": one_of(draw, (8, 16, 40)),
        "sliding_window": one_of(draw, (5, 16)),
        "vocab_size_per_layer_input": given["vocab_size"],
    }
    if not shared and draw(st.booleans()):
        found["layer_types"] = None
    if found["attention_k_eq_v"]:
        heads = given["num_attention_heads"]
        found["num_global_key_value_heads"] = one_of(
            draw, [heads] + [kv for kv in (1, 2) if not heads % kv]
        )
    return found


def draw_no_rope(draw: Draw, given: Settings, read: Collection[str]) -> Settings:
    """Layers without RoPE: listed, or every n-th."""
    layers = given["num_hidden_layers"]
    named = draw(st.lists(st.integers(0, 1), min_size=layers, max_size=layers))
    every = one_of(draw, (2, 3, 4))
    by_name = draw(st.booleans()) and any(named)
    return {"no_rope_layers": named} if by_name else {"no_rope_layer_interval": every}


def draw_moe_layers(draw: Draw, given: Settings, read: Collection[str]) -> Settings:
    """Llama 4's MoE layers."""
    return {"interleave_moe_layer_step": one_of(draw, (1, 2))}


def draw_nemotron_h(draw: Draw, given: Settings, read: Collection[str]) -> Settings:
    """Layers of one block each, some followed by an MLP."""
    mixers = [
        "linear_attention", "full_attention",
        *draw(st.lists(st.sampled_from(("linear_attention", "full_attention")), max_size=2)),
    ]  # fmt: skip
    kinds = [kind for mixer in mixers for kind in (mixer, *["mlp"] * draw(st.integers(0, 1)))]
    heads = one_of(draw, (1, 2, 3, 4))
    return {
        "layers_block_type": kinds,
        "mamba_num_heads": heads,
        "n_groups": one_of(draw, [groups for groups in (1, 2, 3, 4) if not heads % groups]),
        "mamba_head_dim": one_of(draw, (5, 12, 16)),
    }


def draw_bamba(draw: Draw, given: Settings, read: Collection[str]) -> Settings:
    """Which layers are attention."""
    layers = one_of(draw, (2, 3, 4))
    full = draw(st.lists(st.integers(0, layers - 1), min_size=1, max_size=layers - 1, unique=True))
    return {"num_hidden_layers": layers, "attn_layer_indices": sorted(full)}


def draw_mamba2(draw: Draw, given: Settings, read: Collection[str]) -> Settings:
    """Mamba-2 heads whose total width is the hidden size or twice that."""
    expand, heads = one_of(draw, (1, 2)), one_of(draw, (1, 2, 3, 4))
    hidden = heads * one_of(draw, (5, 8, 11, 16))
    return {
        "num_heads": heads,
        "n_groups": one_of(draw, [groups for groups in (1, 2, 3, 4) if not heads % groups]),
        "expand": expand,
        "hidden_size": hidden,
        "head_dim": expand * hidden // heads,
    }


def draw_falcon(draw: Draw, given: Settings, read: Collection[str]) -> Settings:
    """Mamba-2 with its own width, and biases that are set together."""
    heads = one_of(draw, (1, 2, 3, 4))
    dim = one_of(draw, (5, 10, 16))
    bias = draw(st.booleans())
    return {
        "mamba_n_heads": heads,
        "mamba_d_head": dim,
        "mamba_d_ssm": heads * dim,
        "mamba_n_groups": one_of(draw, [groups for groups in (1, 2, 3, 4) if not heads % groups]),
        "mamba_proj_bias": bias,
        "projectors_bias": bias,
    }


def draw_rotary_part(draw: Draw, given: Settings, read: Collection[str]) -> Settings:
    """MiniMax's partial RoPE."""
    rotated = one_of(draw, [size for size in (4, 8, 16) if size <= given["head_dim"]])
    share = rotated / given["head_dim"]
    rope = {"rope_type": "default", "rope_theta": one_of(draw, (1e4, 5e6))}
    return {"rotary_dim": rotated, "rope_parameters": {**rope, "partial_rotary_factor": share}}


def draw_alibi_scores(draw: Draw, given: Settings, read: Collection[str]) -> Settings:
    """MPT's ALiBi. transformers assumes `alibi_bias_max` 8 whatever config.json says."""
    return {"attn_config": {"softmax_scale": one_of(draw, (None, 0.1, 0.3))}}


def draw_dbrx(draw: Draw, given: Settings, read: Collection[str]) -> Settings:
    """DBRX's nested keys of attention and experts."""
    heads, count = given["num_attention_heads"], one_of(draw, EXPERTS)
    return {
        "attn_config": {
            "clip_qkv": one_of(draw, (0.7, 8.0)),
            "kv_n_heads": one_of(draw, [kv for kv in range(1, heads + 1) if not heads % kv]),
            "rope_theta": given["rope_parameters"]["rope_theta"],
        },
        "ffn_config": {
            "ffn_act_fn": {"name": one_of(draw, ACTIVATIONS)},
            "ffn_hidden_size": one_of(draw, WIDTHS),
            "moe_num_experts": count,
            "moe_top_k": draw(st.integers(1, count)),
            "moe_normalize_expert_weights": one_of(draw, (None, 1.0)),
        },
    }


def draw_zamba2(draw: Draw, given: Settings, read: Collection[str]) -> Settings:
    """Zamba 2's Mamba-2 heads, and adapters, with which all heads have keys of their own."""
    expand = one_of(draw, (1, 2))
    width = expand * given["hidden_size"]
    heads = one_of(draw, [heads for heads in (1, 2, 3, 4) if not width % heads])
    adapts = draw(st.booleans())
    return {
        "mamba_expand": expand,
        "n_mamba_heads": heads,
        "mamba_ngroups": one_of(draw, [groups for groups in (1, 2, 3, 4) if not heads % groups]),
        "use_shared_attention_adapter": adapts,
        "num_key_value_heads": given["num_attention_heads" if adapts else "num_key_value_heads"],
    }


def draw_shared_blocks(draw: Draw, given: Settings, read: Collection[str]) -> Settings:
    """Which layers run a shared block, and how many blocks there are."""
    more = draw(st.lists(st.sampled_from(("hybrid", "linear_attention")), max_size=3))
    kinds = draw(st.permutations(["hybrid", "linear_attention", *more]))
    return {
        "num_hidden_layers": len(kinds),
        "layers_block_type": kinds,
        "num_mem_blocks": one_of(draw, (1, 2)),
    }


def draw_short_queries(draw: Draw, given: Settings, read: Collection[str]) -> Settings:
    """Latent attention whose queries are always made of a short vector."""
    found = draw_latent(draw, given, read)
    return {**found, "q_lora_rank": found["q_lora_rank"] or 12}


def draw_latent_layers(draw: Draw, given: Settings, read: Collection[str]) -> Settings:
    """MoE layers listed by type name."""
    layers = given["num_hidden_layers"]
    kinds = st.lists(st.sampled_from(("dense", "sparse")), min_size=layers, max_size=layers)
    return {"mlp_layer_types": draw(kinds)}


def draw_methods(draw: Draw, given: Settings, read: Collection[str]) -> Settings:
    """DeepSeek-V2's routing: group-limited or plain top-k."""
    return {"topk_method": one_of(draw, ("greedy", "group_limited_greedy"))}


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
        {"attention_chunk_size": (512,)},
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
         "decoder_bias": FLAGS, "norm_bias": FLAGS},
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


def drawn(family: str, number: int) -> Settings:
    """The config with this number, as keyword arguments of transformers' config class."""
    return drawn_from(configs(family), number)


def drawn_from(strategy: st.SearchStrategy[Settings], number: int) -> Settings:
    """The config with this number among those of a strategy."""
    found: list[Settings] = []

    @seed(number)
    @settings(
        max_examples=EXAMPLES, phases=[Phase.generate], database=None, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(strategy)
    def keep(one: Settings) -> None:
        found.append(one)

    keep()
    return found[-1]


def configs(family: str) -> st.SearchStrategy[Settings]:
    """Strategy over all configs of a family."""
    return _configs(family, _ours_read(family))


@cache
def _ours_read(family: str) -> frozenset[str]:
    """The keys that the family's config reader accesses, under common names."""
    names = {key: key for key in varied_keys(family)} | own_settings(family)
    keys = [theirs for theirs in names.values() if theirs]
    tiny = {**tiny_settings(family), "architectures": [FAMILIES[family]]}
    read = read_keys(tiny, keys)
    # Some keys are read only with a flag that a tiny config has not.
    flags = {key: True for key in read if CHOICES.get(key) == FLAGS}
    for more in (flags, {"use_sliding_window": True}):
        with suppress(CheckpointError):
            read |= read_keys({**tiny, **more}, keys)
    return frozenset(ours for ours, theirs in names.items() if theirs in read)


def varied_keys(family: str) -> set[str]:
    """All config keys that a family's draws may vary."""
    own = OWN.get(family, NOTHING)
    decided = (key for one in (*VARIATIONS, *own.variations) for key in one.keys)
    return {*CHOICES, *own.choices, *decided} - set(own.without)


@st.composite
def _configs(draw: Draw, family: str, read: Collection[str]) -> Settings:
    own = OWN.get(family, NOTHING)
    made: Settings = {**full_settings(family), **own.marks}
    choices = {**CHOICES, **own.choices}
    for key in sorted(read & choices.keys()):
        made[key] = one_of(draw, choices[key])
    for variation in variations_of(own):
        if variation.keys[0] in read:
            made |= variation.draw(draw, made, read)
    return tiny_settings(family, **{key: made[key] for key in made.keys() - MARKS})


def variations_of(own: Own) -> list[Variation]:
    """A family's variations in dependency order."""
    replaced = {one.keys[0]: one for one in own.variations}
    shared = [replaced.pop(one.keys[0], one) for one in VARIATIONS]
    return [*shared, *replaced.values()]


def full_settings(family: str) -> Settings:
    """The family's tiny config under common key names."""
    names = own_settings(family)
    back = {theirs: ours for ours, theirs in names.items() if theirs}
    return {back.get(key, key): value for key, value in tiny_settings(family).items()}
