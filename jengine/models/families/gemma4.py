"""Gemma 4, dense text models: per-layer inputs, layers that share earlier KV caches, normalised
values, and full layers with larger, partly rotated heads.

Folders with images and audio are read for their text model where `architectures` says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

from jengine.config import AttentionConfig, LayerConfig, LayerInputsConfig, ModelConfig, RopeConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    Defaults,
    read_attention,
    read_decoder,
    read_mlp,
    read_num_layers,
)
from jengine.models.reading.hf_layers import read_layer_pattern
from jengine.models.reading.hf_rope import PARTIAL, write_rope_scaling
from jengine.models.reading.hf_vision import as_architecture, text_part
from jengine.models.reading.hf_write import (
    write_activation,
    write_common,
    write_layer_types,
    written_window,
)
from jengine.models.tensors.checkpoint import IgnoredTensor, Names

ARCHITECTURES = ("Gemma4ForCausalLM",)
MODELS = "Gemma 4 (dense, text)"
BOTH_WAYS = "use_bidirectional_attention"


def ignored_of(prefix: str) -> tuple[IgnoredTensor, ...]:
    """Tensors of a decoder with this prefix that are not read."""
    unread = IgnoredTensor(
        rf"{re.escape(prefix)}layers\.\d+\.self_attn\.(k_proj|v_proj|k_norm)\.weight",
        "published files have these for layers that read those of others, too",
    )
    return (*Names().ignored, unread)


NAMES = Names(
    before_mlp="pre_feedforward_layernorm",
    older=(("model.language_model.", "model."),),
    ignored=(
        *ignored_of("model."),
        IgnoredTensor(
            r"model\.(vision_tower|audio_tower|embed_vision|embed_audio)\..*",
            "a text model does not use what encodes images and audio",
        ),
    ),
)
DEFAULTS = Defaults(
    vocab_size=262144,
    hidden_size=2304,
    intermediate_size=9216,
    num_layers=30,
    num_heads=8,
    num_kv_heads=4,
    head_dim=256,
    max_position=131072,
    activation="gelu_pytorch_tanh",
    activation_key="hidden_activation",
    tie_embeddings=True,
    bos_token_id=2,
    eos_token_id=1,
)
ROPES: dict[str, object] = {
    "full_attention": {"rope_type": "proportional", PARTIAL: 0.25, "rope_theta": 1000000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    text = as_architecture(text_part(hf), ARCHITECTURES[0])
    fields = Fields({**text, "rope_parameters": None})
    if fields.values.get(BOTH_WAYS) not in (None, False, "vision"):
        fields.refuse(BOTH_WAYS, "null or 'vision': texts are causal here")
    if fields.flag("enable_moe_block", False):
        fields.refuse(
            "enable_moe_block", "false: experts beside an MLP, with norms of their own, are missing"
        )
    num_layers = read_num_layers(fields, DEFAULTS)
    windows = list(read_layer_pattern(fields, num_layers, 512, full_every=6))
    windows[-1] = None  # full attention, whatever the pattern says, as in transformers
    own = _read_own(fields, num_layers)
    config = read_decoder(fields, DEFAULTS, _read_layers(text, windows, own))
    return replace(
        config,
        norm_places="around",
        embed_scale=math.sqrt(config.hidden_size),
        logit_soft_cap=fields.optional_number("final_logit_softcapping", None),
        layer_inputs=_read_layer_inputs(fields, config),
        layer_factors=True,
    )


def _read_own(fields: Fields, num_layers: int) -> int:
    """Number of leading layers that compute their own keys and values."""
    shared = fields.integer("num_kv_shared_layers", 0, minimum=0, maximum=num_layers - 1)
    return num_layers - shared


def _read_layers(
    text: Mapping[str, object], windows: list[int | None], own: int
) -> tuple[LayerConfig, ...]:
    fields = Fields(text)
    ropes = fields.part("rope_parameters") or Fields(ROPES)
    full_keys = {**_read_full(fields, windows), "rope_parameters": ropes.values["full_attention"]}
    sliding_keys = {"rope_parameters": ropes.values.get("sliding_attention")}
    wide = 1 + fields.flag("use_double_wide_mlp", False)
    mlp = read_mlp(fields, DEFAULTS)
    full, sliding = (
        _read_attention(Fields({**text, **keys})) for keys in (full_keys, sliding_keys)
    )
    full = replace(full, keys_are_values=fields.flag("attention_k_eq_v", False))
    sources = _read_sources(fields, windows, own)
    layers = []
    for layer, window in enumerate(windows):
        mixer = replace(full if window is None else sliding, window=window)
        if layer < own:
            mixer = replace(mixer, is_source=layer in sources)
            layers.append(LayerConfig(mixer, mlp))
        else:
            mixer = replace(mixer, value_norm=False, keys_are_values=False, source=sources[layer])
            block = replace(mlp, intermediate_size=wide * mlp.intermediate_size)
            layers.append(LayerConfig(mixer, block))
    return tuple(layers)


def _read_sources(fields: Fields, windows: list[int | None], own: int) -> list[int | None]:
    """For each sharing layer, the last owning layer with the same window; None for owning
    layers."""
    last = {window: layer for layer, window in enumerate(windows[:own])}
    if any(window not in last for window in windows[own:]):
        fields.refuse("num_kv_shared_layers", "a layer of each kind before those that share")
    return [None if layer < own else last[window] for layer, window in enumerate(windows)]


def _read_attention(fields: Fields) -> AttentionConfig:
    bias = fields.flag("attention_bias", False)
    attention = read_attention(fields, DEFAULTS, qkv_bias=bias, output_bias=bias, qk_norm="head")
    return replace(attention, scale=1.0, value_norm=True)


def _read_full(fields: Fields, windows: list[int | None]) -> dict[str, object]:
    """Overrides of full-attention layers, at the top level or in `per_layer_config`."""
    per_layer = fields.part("per_layer_config")
    if per_layer is None:
        given: dict[str, object] = {"head_dim": fields.integer("global_head_dim", 512)}
        kv_heads = fields.optional_integer("num_global_key_value_heads", None)
        if fields.flag("attention_k_eq_v", False) and kv_heads is not None:
            given["num_key_value_heads"] = kv_heads
        return given
    full = {layer for layer, window in enumerate(windows) if window is None}
    found = {layer: dict(_one(per_layer, key).values) for layer, key in _numbered(per_layer)}
    given = found.get(min(full), {})
    expected = dict.fromkeys(full, given) if given else {}
    if found != expected or set(given) - {"head_dim", "num_key_value_heads"}:
        fields.refuse(
            "per_layer_config",
            "the same head_dim and num_key_value_heads for each layer of full_attention, and none"
            " for others",
        )
    return given


def _numbered(per_layer: Fields) -> list[tuple[int, str]]:
    """Keys with their layer numbers: "5" and "05" are the same."""
    for key in per_layer.values:
        if not (isinstance(key, str) and key.isdecimal()):
            per_layer.refuse(str(key), "numbers of layers")
    return [(int(key), key) for key in per_layer.values]


def _one(per_layer: Fields, key: str) -> Fields:
    found = per_layer.part(key)
    return Fields({}) if found is None else found


def _read_layer_inputs(fields: Fields, config: ModelConfig) -> LayerInputsConfig | None:
    size = fields.integer("hidden_size_per_layer_input", 256, minimum=0)
    if not size:
        return None
    rows = fields.integer("vocab_size_per_layer_input", 262144)
    if rows < config.vocab_size:
        fields.refuse("vocab_size_per_layer_input", f"at least vocab_size ({config.vocab_size})")
    mlp = config.layers[0].ffn
    return LayerInputsConfig(size, rows, mlp.activation)


def write_config(config: ModelConfig) -> dict[str, object]:
    mixers, blocks = zip(*((layer.mixer, layer.ffn) for layer in config.layers), strict=True)
    full = mixers[-1]
    sliding = next((mixer for mixer in mixers if mixer.window is not None), full)
    inputs, shares = config.layer_inputs, sum(mixer.source is not None for mixer in mixers)
    keys_are_values = any(mixer.keys_are_values for mixer in mixers)
    return {
        **write_common(config),
        "model_type": "gemma4_text",
        "hidden_size": config.hidden_size,
        "intermediate_size": blocks[0].intermediate_size,
        "use_double_wide_mlp": blocks[-1].intermediate_size != blocks[0].intermediate_size,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": full.num_heads,
        "num_key_value_heads": sliding.num_kv_heads,
        "head_dim": sliding.head_dim,
        "global_head_dim": full.head_dim,
        "num_global_key_value_heads": full.num_kv_heads if keys_are_values else None,
        "attention_k_eq_v": keys_are_values,
        "attention_bias": full.qkv_bias,
        "num_kv_shared_layers": shares,
        "layer_types": write_layer_types(config),
        "sliding_window": written_window(config) or 512,
        "rope_parameters": {
            "full_attention": _write_rope(full),
            "sliding_attention": _write_rope(sliding),
        },
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.norm_eps,
        "hidden_activation": write_activation(config),
        "final_logit_softcapping": config.logit_soft_cap,
        "hidden_size_per_layer_input": 0 if inputs is None else inputs.size,
        "vocab_size_per_layer_input": config.vocab_size if inputs is None else inputs.rows,
        "tie_word_embeddings": config.tie_embeddings,
    }


def _write_rope(attention: AttentionConfig) -> dict[str, object]:
    rope = attention.rope
    assert isinstance(rope, RopeConfig), "all of Gemma's layers are rotated"
    scaling = write_rope_scaling(rope) or {"rope_type": "default"}
    if rope.kind == "proportional":
        scaling[PARTIAL] = 2 * rope.pairs / attention.head_dim
    return {**scaling, "rope_theta": rope.theta}
