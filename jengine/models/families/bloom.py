"""BLOOM: ALiBi, layer norms (one after the embedding), biases everywhere, and one QKV tensor
grouped by head.
"""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import AlibiConfig, AttentionConfig, LayerConfig, MlpConfig, ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import MOST_LAYERS, read_common, refuse_unsupported
from jengine.models.reading.hf_write import write_common, written_attention
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("BloomForCausalLM",)
MODELS = "BLOOM"
NAMES = Names(
    prefix="transformer.",
    embed="word_embeddings",
    embed_norm="word_embeddings_layernorm",
    final_norm="ln_f",
    layers="h",
    qkv=("self_attention.query_key_value",),
    qkv_by_head=True,
    attention_out="self_attention.dense",
    gate_up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
)
# Options that no released BLOOM uses, with the only supported value.
FIXED = {"apply_residual_connection_post_layernorm": False, "slow_but_exact": False}


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    refuse_unsupported(fields)
    for key, value in FIXED.items():
        fields.expect(key, value)
    vocab = fields.integer("vocab_size", 250880)
    hidden = fields.integer(_name(fields, "hidden_size", "n_embed"), 64)
    heads_name = _name(fields, "n_head", "num_attention_heads")
    heads = fields.integer(heads_name, 8)
    if hidden % (2 * heads):
        fields.refuse(heads_name, f"a number of heads of even size, of {hidden} dimensions in all")
    attention = AttentionConfig(
        heads, heads, hidden // heads, rope=None, alibi=AlibiConfig(), qkv_bias=True,
        output_bias=True,
    )  # fmt: skip
    mlp = MlpConfig(4 * hidden, "gelu_tanh", gated=False, biases=True)
    layers_name = _name(fields, "n_layer", "num_hidden_layers")
    return ModelConfig(
        hidden_size=hidden,
        max_position=fields.integer("seq_length", 2048),
        layers=(LayerConfig(attention, mlp),) * fields.integer(layers_name, 2, maximum=MOST_LAYERS),
        norm_eps=fields.number("layer_norm_epsilon", 1e-5, above_minimum=True),
        norm="layer",
        embed_norm=True,
        tie_embeddings=fields.flag("tie_word_embeddings", True),
        **read_common(fields, vocab, 1, 2),
    )


def write_config(config: ModelConfig) -> dict[str, object]:
    return {
        **write_common(config),
        "model_type": "bloom",
        "hidden_size": config.hidden_size,
        "n_layer": len(config.layers),
        "n_head": written_attention(config).num_heads,
        "seq_length": config.max_position,
        "layer_norm_epsilon": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        **FIXED,
    }


def _name(fields: Fields, name: str, other: str) -> str:
    """Whichever of two names of a key is present; published files use the second."""
    return other if fields.values.get(name) is None and other in fields.values else name
