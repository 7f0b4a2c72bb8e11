"""GPT-2: learned positions, layer norms, an ungated MLP, biases everywhere."""

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
from jengine.models.tensors.checkpoint import IgnoredTensor, Names

ARCHITECTURES = ("GPT2LMHeadModel",)
MODELS = "GPT-2"
NAMES = Names(
    prefix="transformer.",
    embed="wte",
    positions="wpe",
    final_norm="ln_f",
    layers="h",
    before_attention="ln_1",
    before_mlp="ln_2",
    qkv=("attn.c_attn",),
    attention_out="attn.c_proj",
    gate_up=("mlp.c_fc",),
    down="mlp.c_proj",
    stored_in_out=True,
    ignored=(
        IgnoredTensor(
            r"transformer\.h\.\d+\.attn\.(bias|masked_bias)", "old files store the causal mask"
        ),
    ),
)
# Options that no released GPT-2 uses, with the only supported value.
FIXED = {"scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}
END_OF_TEXT = 50256


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    refuse_unsupported(fields)
    for key, value in FIXED.items():
        fields.expect(key, value)
    vocab, hidden = fields.integer("vocab_size", 50257), fields.integer("n_embd", 768)
    heads = fields.integer("n_head", 12)
    if hidden % heads:
        fields.refuse("n_embd", f"a multiple of n_head ({heads})")
    attention = AttentionConfig(
        heads,
        heads,
        hidden // heads,
        rope=None,
        qkv_bias=True,
        output_bias=True,
        scale=None if fields.flag("scale_attn_weights", True) else 1.0,
    )
    mlp = MlpConfig(
        fields.optional_integer("n_inner", None) or 4 * hidden,
        read_activation(fields, "activation_function", "gelu_new"),
        gated=False,
        biases=True,
    )
    num_layers = fields.integer("n_layer", 12, maximum=MOST_LAYERS)
    return ModelConfig(
        hidden_size=hidden,
        max_position=fields.integer("n_positions", 1024),
        layers=(LayerConfig(attention, mlp),) * num_layers,
        norm_eps=fields.number("layer_norm_epsilon", 1e-5, above_minimum=True),
        norm="layer",
        learned_positions=True,
        tie_embeddings=fields.flag("tie_word_embeddings", True),
        **read_common(fields, vocab, END_OF_TEXT, END_OF_TEXT),
    )


def write_config(config: ModelConfig) -> dict[str, object]:
    attention, mlp = written_attention(config), config.layers[0].ffn
    # GPT-2's own name of the same function.
    gelu_new = mlp.activation == "gelu_tanh"
    return {
        **write_common(config),
        "model_type": "gpt2",
        "n_embd": config.hidden_size,
        "n_inner": mlp.intermediate_size,
        "n_layer": len(config.layers),
        "n_head": attention.num_heads,
        "n_positions": config.max_position,
        "layer_norm_epsilon": config.norm_eps,
        "activation_function": "gelu_new" if gelu_new else write_activation(config),
        "tie_word_embeddings": config.tie_embeddings,
        "scale_attn_weights": attention.scale is None,
        **FIXED,
    }
