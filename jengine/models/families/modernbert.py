"""ModernBERT: an encoder with rotary positions, gated MLPs, and a sliding window on two of three
layers.

The first layer has no attention norm, as the embeddings are normalised already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import (
    AttentionConfig,
    HeadLayer,
    LayerConfig,
    MlpConfig,
    ModelConfig,
    RopeConfig,
)
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    MOST_LAYERS,
    read_activation,
    read_architecture,
    read_dtype,
)
from jengine.models.reading.hf_layers import read_layer_types
from jengine.models.reading.hf_rope import read_rope, ropes_by_layer_type
from jengine.models.reading.hf_write import write_activation, write_common, written_attention
from jengine.models.reading.pooling import OwnPooling, label_names
from jengine.models.tensors.checkpoint import IgnoredTensor, Names

ARCHITECTURES = ("ModernBertModel", "ModernBertForSequenceClassification",
                 "ModernBertForTokenClassification", "ModernBertForMaskedLM")  # fmt: skip
MODELS = "ModernBERT"
NAMES = Names(
    embed="embeddings.tok_embeddings",
    embed_norm="embeddings.norm",
    final_norm="final_norm",
    before_attention="attn_norm",
    before_mlp="mlp_norm",
    qkv=("attn.Wqkv",),
    attention_out="attn.Wo",
    gate_up=("mlp.Wi",),
    down="mlp.Wo",
    ignored=(
        IgnoredTensor(r"(head\.(dense|norm)|decoder)\.(weight|bias)", "this class has no head"),
    ),
)
PAD = 50283  # of the published vocabulary
THETAS = {"full": 160000.0, "sliding": 10000.0}


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    hidden = fields.integer("hidden_size", 768)
    heads = fields.integer("num_attention_heads", 12)
    if hidden % heads:
        fields.refuse("hidden_size", f"a multiple of num_attention_heads ({heads})")
    bias = fields.flag("attention_bias", False)
    attention = AttentionConfig(
        heads, heads, hidden // heads, bidirectional=True, qkv_bias=bias, output_bias=bias
    )
    mlp = MlpConfig(
        fields.integer("intermediate_size", 1152),
        read_activation(fields, "hidden_activation", "gelu"),
        biases=fields.flag("mlp_bias", False),
    )
    return ModelConfig(
        architecture=read_architecture(fields),
        vocab_size=fields.integer("vocab_size", 50368),
        hidden_size=hidden,
        max_position=fields.integer("max_position_embeddings", 8192),
        layers=read_layers(hf, attention, mlp),
        norm_eps=fields.number("norm_eps", 1e-5, above_minimum=True),
        norm="layer" if fields.flag("norm_bias", False) else "layer_no_bias",
        embed_norm=True,
        tie_embeddings=True,
        initializer_range=fields.number("initializer_range", 0.02, maximum=1.0),
        dtype=read_dtype(fields),
    )


def read_layers(
    hf: Mapping[str, object], attention: AttentionConfig, mlp: MlpConfig
) -> tuple[LayerConfig, ...]:
    """Every third layer attends globally, the others within half of `local_attention` on each
    side."""
    fields = Fields(hf)
    count = fields.integer("num_hidden_layers", 22, maximum=MOST_LAYERS)
    every = fields.integer("global_attn_every_n_layers", 3)
    if fields.values.get("layer_types") is None:
        kinds = ["sliding" if index % every else "full" for index in range(count)]
    else:
        kinds = list(read_layer_types(fields, count))
    window = fields.integer("local_attention", 128) // 2 + 1
    ropes = read_ropes(hf, fields.integer("max_position_embeddings", 8192))
    layers = [
        LayerConfig(
            replace(attention, rope=ropes[kind], window=window if kind == "sliding" else None), mlp
        )
        for kind in kinds
    ]
    return (replace(layers[0], attention_norm=False), *layers[1:])


def read_ropes(hf: Mapping[str, object], longest: int) -> dict[str, RopeConfig]:
    """Rotation of full and sliding layers, in the style of transformers 4 or 5."""
    if hf.get("rope_parameters") is not None:
        full, sliding = ropes_by_layer_type(hf, "local_rope_theta")
        return {
            "full": read_rope(full, THETAS["full"], longest),
            "sliding": read_rope(sliding, THETAS["sliding"], longest),
        }
    fields = Fields(hf)
    thetas = {
        "full": fields.number("global_rope_theta", THETAS["full"], above_minimum=True),
        "sliding": fields.optional_number("local_rope_theta", THETAS["sliding"]),
    }
    plain = {"full": thetas["full"], "sliding": thetas["sliding"] or thetas["full"]}
    return {
        kind: read_rope(Fields({"rope_theta": one}), one, longest) for kind, one in plain.items()
    }


def read_pooling(hf: Mapping[str, object], config: ModelConfig) -> OwnPooling:
    """Default pooling: first token, or mean of all; classifiers have a dense layer and a norm
    before the classifier."""
    fields = Fields(hf)
    if not config.architecture.endswith("Classification"):
        return OwnPooling("CLS")
    chosen = fields.choice("classifier_pooling", "cls", {"cls": "CLS", "mean": "MEAN"})
    activation = fields.choice("classifier_activation", "gelu", {"gelu": "gelu", "silu": "silu"})
    dense = HeadLayer(
        config.hidden_size, "head.dense", activation,  # type: ignore[arg-type]
        bias=fields.flag("classifier_bias", False), norm="head.norm",
        norm_bias=fields.flag("norm_bias", False),
    )  # fmt: skip
    labels = len(label_names(fields, config.architecture))
    return OwnPooling(chosen, (dense, HeadLayer(labels, "classifier")))  # type: ignore[arg-type]


def write_config(config: ModelConfig) -> dict[str, object]:
    attention = written_attention(config)
    windows = [layer.mixer.window for layer in config.layers]
    found = next((window for window in windows if window is not None), 65)
    ropes = {
        kind: next((mixer.rope for mixer in mixers), attention.rope)
        for kind, mixers in {
            "full": [one.mixer for one in config.layers if one.mixer.window is None],
            "sliding": [one.mixer for one in config.layers if one.mixer.window is not None],
        }.items()
    }  # fmt: skip
    return {
        **write_common(config),
        "model_type": "modernbert",
        "pad_token_id": PAD if config.vocab_size > PAD else 0,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": attention.num_heads,
        "intermediate_size": config.layers[0].ffn.active_size,
        "attention_bias": attention.qkv_bias,
        "mlp_bias": config.layers[0].ffn.biases,
        "norm_bias": config.norm == "layer",
        "max_position_embeddings": config.max_position,
        "hidden_activation": write_activation(config),
        "norm_eps": config.norm_eps,
        "local_attention": (found - 1) * 2,
        "layer_types": [
            "full_attention" if window is None else "sliding_attention" for window in windows
        ],
        "global_rope_theta": getattr(ropes["full"], "theta", THETAS["full"]),
        "local_rope_theta": getattr(ropes["sliding"], "theta", THETAS["sliding"]),
    }
