"""LFM2: gated short convolutions in most layers, attention with QK-norm in the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import MlpConfig, ModelConfig, ShortConvConfig
from jengine.errors import CheckpointError
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults, read_mlp
from jengine.models.reading.hf_layers import read_layer_types
from jengine.models.reading.hf_write import written_attention
from jengine.models.reading.plain_decoder import UNSAID, PlainDecoder, with_blocks, with_mixers
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("Lfm2ForCausalLM",)
MODELS = "LFM2"
NAMES = Names(
    final_norm="embedding_norm",
    embed_norm="embedding_norm",  # GGUF's name of the final norm
    before_attention="operator_norm",
    before_mlp="ffn_norm",
    q_norm="self_attn.q_layernorm",
    k_norm="self_attn.k_layernorm",
    attention_out="self_attn.out_proj",
    recurrent="conv",
    gate_up=("feed_forward.w1", "feed_forward.w3"),
    down="feed_forward.w2",
)
DEFAULTS = Defaults(
    vocab_size=65536,
    hidden_size=2560,
    intermediate_size=12288,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=None,
    max_position=128000,
    norm_eps=1e-5,
    norm_eps_key="norm_eps",
    rope_theta=1000000.0,
    tie_embeddings=True,
    bos_token_id=1,
    eos_token_id=2,
)
KINDS = {"conv": "conv", "full_attention": "full"}
# Keys of transformers 4.
OLD_NAMES = {"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"}
PLAIN = PlainDecoder("lfm2", DEFAULTS, windows=UNSAID, attention={"qk_norm": "head"})


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields({OLD_NAMES.get(key, key): value for key, value in hf.items()})
    config = PLAIN.read_config(fields.values)
    attention, num_layers, hidden = (
        written_attention(config),
        len(config.layers),
        config.hidden_size,
    )
    if fields.integer("conv_dim", hidden) != hidden:
        fields.refuse("conv_dim", f"hidden_size ({hidden})")
    width = fields.integer("conv_L_cache", 3, minimum=2, maximum=16)
    conv = ShortConvConfig(hidden, width, fields.flag("conv_bias", False))
    attention = written_attention(config)
    mixers = [attention if full else conv for full in _read_full_layers(fields, num_layers)]
    return with_blocks(with_mixers(config, mixers), [_read_mlp(fields)] * num_layers)


def write_config(config: ModelConfig) -> dict[str, object]:
    mixers = [layer.mixer for layer in config.layers]
    conv = next((mixer for mixer in mixers if isinstance(mixer, ShortConvConfig)), None)
    if conv is None:
        raise CheckpointError("A config.json of LFM2 cannot express a model without convolutions.")
    kinds = ["conv" if isinstance(mixer, ShortConvConfig) else "full" for mixer in mixers]
    names = {ours: theirs for theirs, ours in KINDS.items()}
    return {
        **PLAIN.write_config(config),
        "block_auto_adjust_ff_dim": False,
        "conv_L_cache": conv.width,
        "conv_bias": conv.bias,
        "layer_types": [names[kind] for kind in kinds],
    }


def _read_full_layers(fields: Fields, num_layers: int) -> list[bool]:
    if fields.values.get("layer_types") is not None:
        return [kind == "full" for kind in read_layer_types(fields, num_layers, KINDS)]
    if fields.values.get("full_attn_idxs") is None:
        return [True] * num_layers
    full = fields.integers("full_attn_idxs", None, maximum=num_layers - 1, each="a layer")
    return [layer in full for layer in range(num_layers)]


def _read_mlp(fields: Fields) -> MlpConfig:
    """MLP size. With block_auto_adjust_ff_dim, config.json gives an ungated MLP's size: the gated
    one has two thirds of it, times a factor, rounded up to a multiple."""
    mlp = read_mlp(fields, DEFAULTS)
    if not fields.flag("block_auto_adjust_ff_dim", True):
        return mlp
    size = int(2 * mlp.intermediate_size / 3)
    factor = fields.optional_number("block_ffn_dim_multiplier", 1.0)
    size = size if factor is None else int(factor * size)
    multiple = fields.integer("block_multiple_of", 256)
    return replace(mlp, intermediate_size=-(-size // multiple) * multiple)
