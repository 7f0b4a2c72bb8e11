"""Nomic's BERT: rotary positions, gated MLPs without biases, post-norms.

config.json uses transformers' keys or those of the original code.
"""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import AttentionConfig, LayerConfig, MlpConfig, ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import MOST_LAYERS, read_architecture, read_dtype
from jengine.models.reading.hf_rope import read_rope
from jengine.models.reading.hf_write import write_common, written_attention
from jengine.models.reading.pooling import OwnPooling
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("NomicBertModel",)
MODELS = "Nomic Embed (text, dense)"
NAMES = Names(
    prefix="",
    embed="embeddings.word_embeddings",
    types="embeddings.token_type_embeddings",
    embed_norm="emb_ln",
    layers="encoder.layers",
    after_attention="norm1",
    after_mlp="norm2",
    qkv=("attn.Wqkv",),
    attention_out="attn.out_proj",
    gate_up=("mlp.fc12", "mlp.fc11"),
    down="mlp.fc2",
    ignored=(),
)
# Key of the original code -> transformers' key.
WORDS = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "max_trained_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}
# Options of other architectures; published models leave them at these values.
FIXED: dict[str, tuple[object, ...]] = {
    "prenorm": (False,),
    "parallel_block": (False,),
    "qkv_proj_bias": (False,),
    "mlp_fc1_bias": (False,),
    "mlp_fc2_bias": (False,),
    "use_rms_norm": (False,),
    "rotary_emb_fraction": (1, 1.0),
    "rotary_emb_interleaved": (False,),
    "rotary_emb_scale_base": (None,),
    "rotary_scaling_factor": (None,),
    "num_experts": (0,),
    "activation_function": ("swiglu",),
    "hidden_act": ("silu",),
}
THETA = 1000.0


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    given = Fields(hf)
    for key, values in FIXED.items():
        if hf.get(key) is not None and hf[key] not in values:
            given.refuse(key, f"{values[0]}, as in all published models")
    fields = Fields({WORDS.get(key, key): value for key, value in hf.items()})
    hidden = fields.integer("hidden_size", 768)
    heads = fields.integer("num_attention_heads", 12)
    if hidden % heads or (hidden // heads) % 2:
        fields.refuse("hidden_size", f"an even multiple of num_attention_heads ({heads})")
    longest = fields.integer("max_position_embeddings", 2048)
    attention = AttentionConfig(
        heads, heads, hidden // heads, rope=read_rope(fields, THETA, longest), bidirectional=True
    )
    mlp = MlpConfig(fields.integer("intermediate_size", 3072))
    layers = fields.integer("num_hidden_layers", 12, maximum=MOST_LAYERS)
    return ModelConfig(
        architecture=read_architecture(fields),
        vocab_size=fields.integer("vocab_size", 30528),
        hidden_size=hidden,
        max_position=longest,
        layers=(LayerConfig(attention, mlp),) * layers,
        norm_eps=fields.number("layer_norm_eps", 1e-12, above_minimum=True),
        norm="layer",
        norm_places="sums",
        embed_norm=True,
        token_types=fields.integer("type_vocab_size", 2),
        tie_embeddings=True,
        initializer_range=fields.number("initializer_range", 0.02, maximum=1.0),
        dtype=read_dtype(fields),
    )


def read_pooling(hf: Mapping[str, object], config: ModelConfig) -> OwnPooling:
    """Default pooling: first token; sentence-transformers' files usually override it."""
    return OwnPooling("CLS")


def write_config(config: ModelConfig) -> dict[str, object]:
    """Inverse of `read_config`, with transformers' keys."""
    attention = written_attention(config)
    return {
        **write_common(config),
        "model_type": "nomic_bert",
        "hidden_size": config.hidden_size,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": attention.num_heads,
        "head_dim": attention.head_dim,
        "intermediate_size": config.layers[0].ffn.active_size,
        "max_position_embeddings": config.max_position,
        "hidden_act": "silu",
        "layer_norm_eps": config.norm_eps,
        "type_vocab_size": config.token_types,
        "rope_theta": THETA if attention.rope is None else attention.rope.theta,
    }
