"""What families draw otherwise than all do: functions that give a few keys together.

In: the settings so far. Out: more settings, under common names.
"""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import strategies as st

from jengine.bench.fidelity.variations import (
    ACTIVATIONS,
    EXPERTS,
    WIDTHS,
    Draw,
    Settings,
    draw_latent,
    draw_rope,
    one_of,
)


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
