"""OPT: learned positions (after two unused rows), layer norms, ReLU, biases everywhere."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import AttentionConfig, LayerConfig, MlpConfig, ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    MOST_LAYERS,
    read_activation,
    read_common,
    refuse_unsupported,
)
from jengine.models.reading.hf_write import write_activation, write_common, written_attention
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("OPTForCausalLM",)
MODELS = "OPT (but for 350M)"
NAMES = Names(
    prefix="model.decoder.",
    positions="embed_positions",
    final_norm="final_layer_norm",
    before_attention="self_attn_layer_norm",
    before_mlp="final_layer_norm",
    attention_out="self_attn.out_proj",
    gate_up=("fc1",),
    down="fc2",
)
# Options with the only supported value; OPT-350M, with post-norms, is refused.
FIXED = {
    "do_layer_norm_before": True,
    "_remove_final_layer_norm": False,
    "layer_norm_elementwise_affine": True,
}
UNUSED_ROWS = 2
NORM_EPS = 1e-5


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    refuse_unsupported(fields)
    for key, value in FIXED.items():
        fields.expect(key, value, ": OPT-350M is not supported")
    vocab, hidden = fields.integer("vocab_size", 50272), fields.integer("hidden_size", 768)
    if fields.optional_integer("word_embed_proj_dim", None) not in (None, hidden):
        fields.refuse("word_embed_proj_dim", f"hidden_size ({hidden}): OPT-350M is not supported")
    heads = fields.integer("num_attention_heads", 12)
    if hidden % heads:
        fields.refuse("hidden_size", f"a multiple of num_attention_heads ({heads})")
    bias = fields.flag("enable_bias", True)
    attention = AttentionConfig(
        heads, heads, hidden // heads, rope=None, qkv_bias=bias, output_bias=bias
    )
    mlp = MlpConfig(
        fields.integer("ffn_dim", 3072),
        read_activation(fields, "activation_function", "relu"),
        gated=False,
        biases=bias,
    )
    num_layers = fields.integer("num_hidden_layers", 12, maximum=MOST_LAYERS)
    return ModelConfig(
        hidden_size=hidden,
        max_position=fields.integer("max_position_embeddings", 2048),
        layers=(LayerConfig(attention, mlp),) * num_layers,
        norm_eps=NORM_EPS,
        norm="layer",
        learned_positions=True,
        position_offset=UNUSED_ROWS,
        tie_embeddings=fields.flag("tie_word_embeddings", True),
        **read_common(fields, vocab, 2, 2, "init_std"),
    )


def write_config(config: ModelConfig) -> dict[str, object]:
    attention, mlp = written_attention(config), config.layers[0].ffn
    common = write_common(config)
    return {
        **common,
        "model_type": "opt",
        "hidden_size": config.hidden_size,
        "word_embed_proj_dim": config.hidden_size,
        "ffn_dim": mlp.intermediate_size,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": attention.num_heads,
        "max_position_embeddings": config.max_position,
        "activation_function": write_activation(config),
        "enable_bias": attention.qkv_bias,
        "init_std": common.pop("initializer_range"),
        "tie_word_embeddings": config.tie_embeddings,
        **FIXED,
    }
