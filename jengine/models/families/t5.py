"""T5, v1.1, Flan-T5 and mT5: encoder-decoder with relative position biases, no positions and
unscaled scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import (
    Activation,
    AttentionConfig,
    DistanceBiasConfig,
    LayerConfig,
    MlpConfig,
    ModelConfig,
    TextStackConfig,
    layers_alike,
)
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    MOST_LAYERS,
    read_architecture,
    read_common,
    refuse_unsupported,
)
from jengine.models.reading.hf_write import write_common, written_attention, written_ffn
from jengine.models.tensors.checkpoint import EVERY, IgnoredTensor, Names, Piece
from jengine.models.tensors.decoder_pieces import decoder_pieces, layer_pieces
from jengine.models.tensors.matrix_pieces import Pieces, matrices
from jengine.models.text_stack import StackedEncoderDecoder

ARCHITECTURES = ("T5ForConditionalGeneration", "MT5ForConditionalGeneration")
MODELS = "T5, Flan-T5, mT5"
SELF, CROSS = "layer.0.SelfAttention", "layer.1.EncDecAttention"
NAMES = Names(
    prefix="",
    embed="shared",
    final_norm="decoder.final_layer_norm",
    layers="decoder.block",
    before_attention="layer.0.layer_norm",
    qkv=(f"{SELF}.q", f"{SELF}.k", f"{SELF}.v"),
    distance_bias=f"{SELF}.relative_attention_bias",
    attention_out=f"{SELF}.o",
    ignored=(
        IgnoredTensor(
            r"(encoder|decoder)\.embed_tokens\.weight", "both share one embedding",
            same_as="shared.weight",
        ),
        IgnoredTensor(
            rf"decoder\.block\.0\.{CROSS}\.relative_attention_bias\.weight",
            "old files store biases of cross attention, which is computed without",
        ),
    ),
)  # fmt: skip
# feed_forward_proj -> activation, and whether the MLP is gated.
FEED_FORWARD: dict[str, tuple[Activation, bool]] = {
    "relu": ("relu", False),
    "gated-gelu": ("gelu_tanh", True),
    "gated-silu": ("silu", True),
    "gated-relu": ("relu", True),
}
USUAL_POSITIONS = 512
build = StackedEncoderDecoder


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    refuse_unsupported(fields)
    architecture = read_architecture(fields)
    vocab, hidden = fields.integer("vocab_size", 32128), fields.integer("d_model", 512)
    heads, head_dim = fields.integer("num_heads", 8), fields.integer("d_kv", 64)
    own = AttentionConfig(
        heads, heads, head_dim, rope=None, scale=1.0, distance_bias=read_biases(fields)
    )
    activation, gated = fields.choice("feed_forward_proj", "relu", FEED_FORWARD)
    mlp = MlpConfig(fields.integer("d_ff", 2048), activation, gated=gated)
    cross = replace(own, distance_bias=None)
    layers = fields.integer("num_layers", 6, maximum=MOST_LAYERS)
    decoders = fields.optional_integer("num_decoder_layers", None, maximum=MOST_LAYERS)
    positions = fields.integer("n_positions", USUAL_POSITIONS)
    tied = read_tied(fields, architecture)
    return ModelConfig(
        hidden_size=hidden,
        max_position=positions,
        layers=layers_alike(layers if decoders is None else decoders, own, mlp, cross),
        norm_eps=fields.number("layer_norm_epsilon", 1e-6, above_minimum=True),
        tie_embeddings=tied,
        logit_scale=hidden**-0.5 if tied else 1.0,
        **read_common(fields, vocab, None, 1),
        text_stack=TextStackConfig(
            layers,
            replace(own, bidirectional=True),
            mlp,
            positions,
            fields.integer("decoder_start_token_id", 0, minimum=0, maximum=vocab - 1),
        ),
    )


def read_biases(fields: Fields) -> DistanceBiasConfig:
    """Buckets of the relative position bias."""
    buckets = fields.integer("relative_attention_num_buckets", 32, maximum=4096)
    if buckets % 4:
        fields.refuse("relative_attention_num_buckets", "a multiple of 4")
    distance = fields.integer(
        "relative_attention_max_distance", 128, minimum=buckets // 2 + 1, maximum=65536
    )
    return DistanceBiasConfig(buckets, distance)


def read_tied(fields: Fields, architecture: str) -> bool:
    """Whether the head is the scaled embedding: never in mT5, although transformers 5 writes
    `tie_word_embeddings: true` into every file."""
    tied, scaled = (
        fields.flag(key, True) for key in ("tie_word_embeddings", "scale_decoder_outputs")
    )
    return tied and scaled and not architecture.startswith("MT5")


def write_config(config: ModelConfig) -> dict[str, object]:
    encoder, attention, mlp = config.text_stack, written_attention(config), mlp_of(config)
    assert encoder is not None, "read with one"
    assert attention.distance_bias is not None
    kind = mlp.activation, mlp.gated
    return {
        **write_common(config),
        "model_type": "mt5" if config.architecture.startswith("MT5") else "t5",
        "is_encoder_decoder": True,
        "d_model": config.hidden_size,
        "d_kv": attention.head_dim,
        "d_ff": mlp.intermediate_size,
        "num_heads": attention.num_heads,
        "num_layers": encoder.num_layers,
        "num_decoder_layers": len(config.layers),
        "n_positions": config.max_position,
        "relative_attention_num_buckets": attention.distance_bias.buckets,
        "relative_attention_max_distance": attention.distance_bias.max_distance,
        "feed_forward_proj": next(name for name, one in FEED_FORWARD.items() if one == kind),
        "layer_norm_epsilon": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "decoder_start_token_id": encoder.start_token,
    }


def pieces(config: ModelConfig) -> Pieces:
    encoder, hidden = config.text_stack, config.hidden_size
    assert encoder is not None, "read with one"
    found = decoder_pieces(config, names_of(config, 2))
    for number, layer in enumerate(config.layers):
        theirs = f"{NAMES.layers}.{number}."
        found |= cross_pieces(layer, hidden, f"layers.{number}.", theirs)
    norm = "encoder.final_layer_norm.weight"
    found["encoder.norm.weight"] = (Piece(norm, (hidden,)),)
    names = names_of(config, 1)
    for number, layer in enumerate(encoder.layers):
        ours, theirs = f"encoder.layers.{number}.", f"encoder.block.{number}."
        found |= layer_pieces(config, layer, names, ours, theirs)
    return found


def mlp_of(config: ModelConfig) -> MlpConfig:
    found = written_ffn(config)
    assert isinstance(found, MlpConfig), "T5 has no experts"
    return found


def names_of(config: ModelConfig, last: int) -> Names:
    """Tensor names of layers whose feed-forward block is sublayer `last`."""
    mlp, block = mlp_of(config), f"layer.{last}.DenseReluDense"
    up = (f"{block}.wi_0", f"{block}.wi_1") if mlp.gated else (f"{block}.wi",)
    norm = f"layer.{last}.layer_norm"
    return replace(NAMES, before_mlp=norm, gate_up=up, down=f"{block}.wo")


def cross_pieces(layer: LayerConfig, hidden: int, ours: str, theirs: str) -> Pieces:
    """Checkpoint tensors of a layer's cross attention."""
    cross = layer.cross
    assert cross is not None, "every layer of the decoder has one"
    width, part = cross.num_heads * cross.head_dim, f"{theirs}{CROSS}"
    kv = [f"{part}.k", f"{part}.v"]
    return {
        f"{ours}before_cross.weight": (Piece(f"{theirs}layer.1.layer_norm.weight", (hidden,)),),
        f"{ours}cross.query.weight": matrices(NAMES, [f"{part}.q"], hidden, (width,), [()]),
        f"{ours}cross.kv.weight": matrices(
            NAMES, kv, hidden, (width, width), [(EVERY, 0), (EVERY, 1)]
        ),
        f"{ours}cross.out.weight": matrices(NAMES, [f"{part}.o"], width, (hidden,), [()]),
    }
