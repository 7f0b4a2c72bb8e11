"""ModernBERT as a decoder: causal, with half-sized windows, and a matmul and a norm before the
head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import AttentionConfig, HeadTransformConfig, LayerConfig, ModelConfig
from jengine.models.families import modernbert
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import ACTIVATIONS, read_activation, read_bos, read_eos
from jengine.models.reading.hf_write import written_window

ARCHITECTURES = ("ModernBertDecoderForCausalLM",)
MODELS = "ModernBERT decoders, such as Ettin"
NAMES = replace(
    modernbert.NAMES,
    prefix="model.",
    qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
    head="decoder",
    head_dense="lm_head.dense",
    head_norm="lm_head.norm",
    ignored=(),
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    config, fields = modernbert.read_config(hf), Fields(hf)
    window = fields.optional_integer("sliding_window", None)
    window = fields.integer("local_attention", 128) // 2 if window is None else window
    return replace(
        config,
        layers=tuple(_causal(layer, window) for layer in config.layers),
        tie_embeddings=fields.flag("tie_word_embeddings", True),
        head_bias=fields.flag("decoder_bias", True),
        head_transform=HeadTransformConfig(
            read_activation(fields, "classifier_activation", "gelu"),
            bias=fields.flag("classifier_bias", False),
        ),
        bos_token_id=read_bos(fields, 50281, config.vocab_size),
        eos_token_ids=read_eos(fields, 50282, config.vocab_size),
    )


def _causal(layer: LayerConfig, window: int) -> LayerConfig:
    mixer = layer.mixer
    assert isinstance(mixer, AttentionConfig), "all layers attend"
    seen = None if mixer.window is None else window
    return replace(layer, mixer=replace(mixer, bidirectional=False, window=seen))


def write_config(config: ModelConfig) -> dict[str, object]:
    transform = config.head_transform
    assert transform is not None, "read with one"
    return {
        **modernbert.write_config(config),
        "model_type": "modernbert-decoder",
        "sliding_window": written_window(config) or 64,
        "tie_word_embeddings": config.tie_embeddings,
        "decoder_bias": config.head_bias,
        "classifier_activation": next(
            theirs for theirs, ours in ACTIVATIONS.items() if ours == transform.activation
        ),
        "classifier_bias": transform.bias,
    }
