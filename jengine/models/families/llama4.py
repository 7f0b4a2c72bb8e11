"""Llama 4, text only: input-weighted experts, layers without rotation, and rotated layers with
chunked attention (8,192 tokens in published models).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jengine.config import AttentionConfig, ExpertsConfig, LayerConfig, ModelConfig, RoutingConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    Defaults,
    read_attention,
    read_decoder,
    read_experts_count,
    read_mlp,
    read_num_layers,
)
from jengine.models.reading.hf_layers import read_layer_types, read_rotated_layers
from jengine.models.reading.hf_write import (
    write_decoder,
    written_attention,
    written_experts,
    written_window,
)
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("Llama4ForCausalLM",)
MODELS = "Llama 4 (text)"
NAMES = Names(
    rotates_neighbours=True,
    gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
    router="feed_forward.router",
    expert_gate_up=("feed_forward.experts.gate_up_proj",),
    expert_down="feed_forward.experts.down_proj",
    expert_layout="inputs_first",
    shared_gate_up=(
        "feed_forward.shared_expert.gate_proj",
        "feed_forward.shared_expert.up_proj",
    ),
    shared_down="feed_forward.shared_expert.down_proj",
)
DEFAULTS = Defaults(
    vocab_size=202048,
    hidden_size=5120,
    intermediate_size=8192,
    num_layers=48,
    num_heads=40,
    num_kv_heads=8,
    head_dim=128,
    max_position=131072,
    norm_eps=1e-5,
    rope_theta=500000.0,
    bos_token_id=1,
    eos_token_id=2,
)

LAYER_TYPES = {"full_attention": "full", "chunked_attention": "chunked"}


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    num_layers = read_num_layers(fields, DEFAULTS)
    rotated = read_rotated_layers(fields, num_layers)
    attentions = _attentions(fields, rotated)
    mlp = read_mlp(fields, DEFAULTS)
    experts = ExpertsConfig(
        *read_experts_count(fields, 16, 1, "num_local_experts"),
        intermediate_size=mlp.intermediate_size,
        activation=mlp.activation,
        routing=RoutingConfig(scores="sigmoid", normalize=False, weighs_inputs=True),
        shared_size=mlp.intermediate_size,
    )
    dense = replace(mlp, intermediate_size=fields.integer("intermediate_size_mlp", 16384))
    sparse = _sparse_layers(fields, num_layers)
    layers = tuple(
        LayerConfig(attention, experts if layer in sparse else dense)
        for layer, attention in enumerate(attentions)
    )
    return read_decoder(fields, DEFAULTS, layers)


def write_config(config: ModelConfig) -> dict[str, object]:
    experts, own = written_experts(config), (layer.mixer for layer in config.layers)
    mixers = [mixer for mixer in own if isinstance(mixer, AttentionConfig)]
    plain = next((mixer.temperature for mixer in mixers if mixer.rope is None), None)
    sizes = [layer.ffn.intermediate_size for layer in config.layers if _is_dense(layer)]
    tuned = {} if plain is None else {"floor_scale": plain[0], "attn_scale": plain[1]}
    return {
        **write_decoder(config),
        **tuned,
        "model_type": "llama4_text",
        "attention_bias": written_attention(config).qkv_bias,
        "attention_chunk_size": written_window(config) or config.max_position,
        "layer_types": [
            "chunked_attention" if mixer.in_chunks else "full_attention" for mixer in mixers
        ],
        "attn_temperature_tuning": plain is not None,
        "intermediate_size": experts.intermediate_size,
        "intermediate_size_mlp": sizes[0] if sizes else experts.intermediate_size,
        "use_qk_norm": any(mixer.qk_norm is not None for mixer in mixers),
        "no_rope_layers": [int(mixer.rope is not None) for mixer in mixers],
        "moe_layers": [i for i, layer in enumerate(config.layers) if not _is_dense(layer)],
        "num_local_experts": experts.num_experts,
        "num_experts_per_tok": experts.experts_per_token,
    }


def _is_dense(layer: LayerConfig) -> bool:
    return not isinstance(layer.ffn, ExpertsConfig)


def _attentions(fields: Fields, rotated: Sequence[bool]) -> list[AttentionConfig]:
    """Attention of each layer, given which ones are rotated."""
    bias = fields.flag("attention_bias", False)
    attention = read_attention(fields, DEFAULTS, qkv_bias=bias, output_bias=bias)
    steps = fields.integer("floor_scale", 8192)
    growth = fields.number("attn_scale", 0.1)
    tuned = fields.flag("attn_temperature_tuning", True)
    norm = "unit" if fields.flag("use_qk_norm", True) else None
    plain = replace(attention, rope=None, temperature=(steps, growth) if tuned else None)
    turned = replace(attention, qk_norm=norm)
    chunk = _chunk(fields)
    in_chunks = list(rotated)
    if fields.values.get("layer_types") is not None:
        kinds = read_layer_types(fields, len(rotated), LAYER_TYPES)
        in_chunks = [kind == "chunked" for kind in kinds]
    own = [turned if turns else plain for turns in rotated]
    if chunk is None:
        return own
    return [
        replace(one, window=chunk, in_chunks=True) if chunked else one
        for one, chunked in zip(own, in_chunks, strict=True)
    ]


def _chunk(fields: Fields) -> int | None:
    """Attention chunk size; None if it covers the whole context."""
    chunk = fields.optional_integer("attention_chunk_size", 8192)
    longest = fields.integer("max_position_embeddings", DEFAULTS.max_position)
    return None if chunk is None or chunk >= longest else chunk


def _sparse_layers(fields: Fields, num_layers: int) -> set[int]:
    step = fields.integer("interleave_moe_layer_step", 1)
    if fields.values.get("moe_layers") is None:
        return set(range(step - 1, num_layers, step))
    return set(fields.integers("moe_layers", None, maximum=num_layers - 1, each="a layer"))
