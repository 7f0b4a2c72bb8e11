"""MPT: ALiBi and layer norms without biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import AlibiConfig, AttentionConfig, LayerConfig, MlpConfig, ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import MOST_LAYERS, read_common, refuse_unsupported
from jengine.models.reading.hf_write import write_common, written_attention
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("MptForCausalLM", "MPTForCausalLM")
MODELS = "MPT"
NAMES = Names(
    prefix="transformer.",
    embed="wte",
    final_norm="norm_f",
    layers="blocks",
    before_attention="norm_1",
    before_mlp="norm_2",
    qkv=("attn.Wqkv",),
    attention_out="attn.out_proj",
    gate_up=("ffn.up_proj",),
    down="ffn.down_proj",
)
NORM_EPS = 1e-5
# Options that transformers' model does not implement, with the value that it assumes.
EXPANSION = 4
FIXED = {"qk_ln": False, "prefix_lm": False, "attn_uses_sequence_id": False, "alibi": True}


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    refuse_unsupported(fields)
    fields.expect("no_bias", True, ", as in all published MPT")
    if fields.number("expansion_ratio", EXPANSION) != EXPANSION:
        fields.refuse("expansion_ratio", f"{EXPANSION}, as in all published MPT")
    if fields.values.get("logit_scale") is not None:
        fields.refuse("logit_scale", "null, as in all published MPT")
    vocab, hidden = fields.integer("vocab_size", 50368), fields.integer("d_model", 2048)
    heads = fields.integer("n_heads", 16)
    if hidden % (2 * heads):
        fields.refuse("n_heads", f"a number of heads of even size, of {hidden} dimensions in all")
    attention = _read_scores(
        fields.part("attn_config") or Fields({}),
        AttentionConfig(heads, heads, hidden // heads, rope=None),
    )
    mlp = MlpConfig(EXPANSION * hidden, "gelu", gated=False)
    num_layers = fields.integer("n_layers", 24, maximum=MOST_LAYERS)
    return ModelConfig(
        hidden_size=hidden,
        max_position=fields.integer("max_seq_len", 2048),
        layers=(LayerConfig(attention, mlp),) * num_layers,
        norm_eps=fields.number("layer_norm_epsilon", NORM_EPS, above_minimum=True),
        norm="layer_no_bias",
        tie_embeddings=fields.flag("tie_word_embeddings", True),
        **read_common(fields, vocab, None, None),
    )


def write_config(config: ModelConfig) -> dict[str, object]:
    attention = written_attention(config)
    alibi = attention.alibi or AlibiConfig()
    return {
        **write_common(config),
        "model_type": "mpt",
        "d_model": config.hidden_size,
        "n_layers": len(config.layers),
        "n_heads": attention.num_heads,
        "max_seq_len": config.max_position,
        "layer_norm_epsilon": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "no_bias": True,
        "expansion_ratio": EXPANSION,
        "attn_config": {
            **FIXED,
            "alibi_bias_max": int(alibi.largest),
            "softmax_scale": attention.scale,
            "clip_qkv": attention.clip,
        },
    }


def _read_scores(fields: Fields, attention: AttentionConfig) -> AttentionConfig:
    """Apply `attn_config`'s score settings."""
    for key, value in FIXED.items():
        fields.expect(key, value, ", as in all published MPT")
    if fields.values.get("attn_type") not in (None, "multihead_attention"):
        fields.refuse("attn_type", "'multihead_attention', as in all published MPT")
    largest = fields.number("alibi_bias_max", 8.0, above_minimum=True)
    if not largest.is_integer():
        fields.refuse("alibi_bias_max", "a whole number")
    scale = fields.optional_number("softmax_scale", None)
    clip = fields.optional_number("clip_qkv", None)
    return replace(attention, alibi=AlibiConfig(largest), scale=scale, clip=clip)
