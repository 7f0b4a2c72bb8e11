"""Reads a decoder's layers: attention with its window and RoPE, and the feed-forward block."""

from __future__ import annotations

from dataclasses import replace

from jengine.config import (
    AttentionConfig,
    ExpertsConfig,
    FfnConfig,
    LayerConfig,
    MlpConfig,
    RoutingConfig,
)
from jengine.errors import CheckpointError
from jengine.models.importing.decoder_layout import DecoderLayout
from jengine.models.importing.experts import ExpertsLayout
from jengine.models.importing.meanings import PLAIN_MEANING, Meaning
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults, read_activation, read_attention
from jengine.models.reading.hf_layers import read_layer_types
from jengine.models.reading.hf_rope import expect_no_factor, ropes_by_layer_type

# Key of Llama 4's attention temperature, within the RoPE settings.
GROWTH = "llama_4_scaling_beta"
SCALES = ("short_mscale", "long_mscale")
LONGEST = "max_position_embeddings"  # duplicated within the RoPE settings
# GPT-Neo's layer types.
KINDS = {"global": "full", "local": "sliding"}


def read_layers(
    fields: Fields, defaults: Defaults, layout: DecoderLayout, meaning: Meaning
) -> tuple[LayerConfig, ...]:
    """All layers. Raises CheckpointError."""
    windows = _windows(fields, layout.layers)
    kinds = {
        is_sliding: _attention(fields, defaults, layout, meaning, is_sliding=is_sliding)
        for is_sliding in {window is not None for window in windows}
    }
    mixers = [replace(kinds[window is not None], window=window) for window in windows]
    mixers = _with_own_bases(fields, mixers)
    dense, sparse = _dense(fields, layout, meaning), _sparse(fields, layout, meaning)
    blocks = [sparse if layer in layout.sparse else dense for layer in range(layout.layers)]
    return tuple(
        LayerConfig(mixer, block) for mixer, block in zip(mixers, blocks, strict=True) if block
    )


def _attention(
    fields: Fields, defaults: Defaults, layout: DecoderLayout, meaning: Meaning, *, is_sliding: bool
) -> AttentionConfig:
    own = fields
    nested = fields.part("rope_parameters")
    if nested is not None and "full_attention" in nested.values:
        full, sliding = ropes_by_layer_type(fields.values, "rope_theta")
        own = Fields({**full.values, **(sliding.values if is_sliding else {})})
    growth, own = _growth(own)
    own = _with_one_scale(own)
    attention = read_attention(
        own, defaults, qkv_bias=layout.qkv_bias, output_bias=layout.output_bias,
        qk_norm=layout.qk_norm,
    )  # fmt: skip
    if meaning.qk_norm == "behind_rotation":
        expect_no_factor(fields, attention.rope)
    rotates = meaning.rotates == "all" or is_sliding
    scale, cap = meaning.score_scale, None
    if "attention_multiplier" in meaning.factors:
        scale = fields.number("attention_multiplier")
    if "query_pre_attn_scalar" in meaning.factors:
        scale = fields.number("query_pre_attn_scalar", above_minimum=True) ** -0.5
    if "attn_logit_softcapping" in meaning.factors:
        cap = fields.optional_number("attn_logit_softcapping", None)
    clip = fields.optional_number("clip_qkv", None) if "clip_qkv" in meaning.factors else None
    return replace(
        attention, clip=clip, rope=attention.rope if rotates and not layout.positions else None,
        scale=scale, soft_cap=cap, sinks=layout.sinks, gated=layout.gated_attention,
        qk_norm=meaning.qk_norm or attention.qk_norm, temperature=growth,
    )  # fmt: skip


def _growth(fields: Fields) -> tuple[tuple[int, float] | None, Fields]:
    """Read Llama 4's attention temperature; return it and the fields without its key."""
    part = fields.part("rope_parameters")
    if part is None or part.values.get(GROWTH) is None:
        return None, fields
    steps = part.integer("original_max_position_embeddings")
    rest = {key: part.values[key] for key in part.values if key not in (GROWTH, LONGEST)}
    found = steps, part.number(GROWTH)
    return found, Fields({**fields.values, "rope_parameters": rest})


def _with_one_scale(fields: Fields) -> Fields:
    """Rewrite rope whose short and long mscale are equal as one with `attention_factor`."""
    part = fields.part("rope_parameters") or fields.part("rope_scaling")
    if part is None or part.values.get("short_mscale") is None:
        return fields
    short, long = part.number("short_mscale"), part.number("long_mscale")
    if short != long:
        part.refuse("long_mscale", f"short_mscale ({short}): what depends on length is not built")
    rest = {key: part.values[key] for key in part.values if key not in SCALES}
    made = {"rope_parameters": {**rest, "attention_factor": short}, "rope_scaling": None}
    return Fields({**fields.values, **made})


def _windows(fields: Fields, layers: int) -> list[int | None]:
    """Window per layer: of layers that `layer_types` marks as sliding, or of all."""
    window = fields.optional_integer("sliding_window", None)
    if fields.flag("use_sliding_window", window is not None) is False:
        window = None
    if fields.values.get("attention_layers") is not None:
        own = Fields({"layer_types": fields.values["attention_layers"]}, fields.where)
        kinds = read_layer_types(own, layers, KINDS)
    elif fields.values.get("layer_types") is None:
        return [window] * layers
    else:
        kinds = read_layer_types(fields, layers)
    if "sliding" in kinds and window is None:
        fields.refuse("layer_types", "'sliding_window' for those layers")
    return [window if kind == "sliding" else None for kind in kinds]


def _with_own_bases(fields: Fields, mixers: list[AttentionConfig]) -> list[AttentionConfig]:
    """Apply per-layer RoPE bases (`layer_rope_theta`)."""
    bases = fields.values.get("layer_rope_theta")
    if bases is None:
        return mixers
    found = fields.numbers("layer_rope_theta", len(mixers))
    return [
        replace(mixer, rope=None if mixer.rope is None else replace(mixer.rope, theta=base))
        for mixer, base in zip(mixers, found, strict=True)
    ]


def _dense(fields: Fields, layout: DecoderLayout, meaning: Meaning) -> FfnConfig | None:
    if layout.inner_size is None:
        return None
    activation = meaning.activation or read_activation(fields, "hidden_act", "")
    return MlpConfig(layout.inner_size, activation, gated=layout.gated, biases=layout.mlp_bias)


def _sparse(fields: Fields, layout: DecoderLayout, meaning: Meaning) -> FfnConfig | None:
    experts: ExpertsLayout | None = layout.experts
    if experts is None:
        return None
    if meaning is PLAIN_MEANING:
        raise CheckpointError(
            "the tensors have experts: how their router scores and weighs them is not shown by"
            f" tensors, and not known of {fields.values['architectures']}."
        )
    groups = fields.optional_integer("n_group", None) or 1
    return ExpertsConfig(
        experts.count, fields.integer("num_experts_per_tok", maximum=experts.count), experts.size,
        read_activation(fields, "hidden_act", ""),
        RoutingConfig(
            scores=meaning.scores,
            normalize=fields.flag("norm_topk_prob", True)
            if meaning.normalize is None
            else meaning.normalize,
            scale=fields.number("routed_scaling_factor", 1.0), choice_bias=experts.choice_bias,
            groups=groups, top_groups=fields.optional_integer("topk_group", None) or 1,
            jitter=fields.number("router_jitter_noise", 0.0),
            exact=meaning.exact_router, chooses_by_logits=meaning.chooses_by_logits,
        ),
        shared_size=experts.shared_size, shared_gate=experts.shared_gate,
    )  # fmt: skip
