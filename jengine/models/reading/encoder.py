"""Reads the config.json of encoders with learned positions: BERT and similar models.

In: fields. Out: the shared decoder's config with bidirectional attention. Must not know tensors.
"""

from __future__ import annotations

from jengine.config import AttentionConfig, LayerConfig, MlpConfig, ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    MOST_LAYERS,
    read_activation,
    read_architecture,
    read_dtype,
)
from jengine.models.reading.hf_write import write_activation, write_common, written_attention
from jengine.models.tensors.checkpoint import IgnoredTensor, Names


def encoder_names(prefix: str, *ignored: IgnoredTensor) -> Names:
    """Tensor names in BERT's style."""
    return Names(
        prefix=prefix,
        embed="embeddings.word_embeddings",
        positions="embeddings.position_embeddings",
        types="embeddings.token_type_embeddings",
        embed_norm="embeddings.LayerNorm",
        layers="encoder.layer",
        after_attention="attention.output.LayerNorm",
        after_mlp="output.LayerNorm",
        qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
        attention_out="attention.output.dense",
        gate_up=("intermediate.dense",),
        down="output.dense",
        ignored=ignored,
    )


def read_encoder(fields: Fields) -> ModelConfig:
    """Read an encoder of BERT's form."""
    if fields.values.get("position_embedding_type", "absolute") != "absolute":
        fields.refuse("position_embedding_type", "absolute")
    if fields.flag("is_decoder", False):
        fields.refuse("is_decoder", "false: this class is an encoder")
    hidden = fields.integer("hidden_size", 768)
    heads = fields.integer("num_attention_heads", 12)
    if hidden % heads:
        fields.refuse("hidden_size", f"a multiple of num_attention_heads ({heads})")
    attention = AttentionConfig(
        heads, heads, hidden // heads, rope=None, qkv_bias=True, output_bias=True,
        bidirectional=True,
    )  # fmt: skip
    mlp = MlpConfig(
        fields.integer("intermediate_size", 3072),
        read_activation(fields, "hidden_act", "gelu"),
        gated=False,
        biases=True,
    )
    layers = fields.integer("num_hidden_layers", 12, maximum=MOST_LAYERS)
    return ModelConfig(
        architecture=read_architecture(fields),
        vocab_size=fields.integer("vocab_size", 30522),
        hidden_size=hidden,
        max_position=fields.integer("max_position_embeddings", 512),
        layers=(LayerConfig(attention, mlp),) * layers,
        norm_eps=fields.number("layer_norm_eps", 1e-12, above_minimum=True),
        norm="layer",
        norm_places="sums",
        embed_norm=True,
        learned_positions=True,
        token_types=fields.integer("type_vocab_size", 2),
        tie_embeddings=True,
        initializer_range=fields.number("initializer_range", 0.02, maximum=1.0),
        dtype=read_dtype(fields),
    )


def write_encoder(config: ModelConfig) -> dict[str, object]:
    """Inverse of `read_encoder`."""
    attention = written_attention(config)
    return {
        **write_common(config),
        "hidden_size": config.hidden_size,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": attention.num_heads,
        "intermediate_size": config.layers[0].ffn.active_size,
        "max_position_embeddings": config.max_position,
        "hidden_act": write_activation(config),
        "layer_norm_eps": config.norm_eps,
        "type_vocab_size": config.token_types,
        "position_embedding_type": "absolute",
    }
