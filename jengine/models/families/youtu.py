"""Youtu-LLM: latent attention as in DeepSeek-V3, dense on every layer."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import LatentConfig, LayerConfig, ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults, read_decoder, read_mlp, read_num_layers
from jengine.models.reading.hf_latent import read_latent, write_latent
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("YoutuForCausalLM",)
MODELS = "Youtu-LLM"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=128256,
    hidden_size=2048,
    intermediate_size=6144,
    num_layers=32,
    num_heads=16,
    num_kv_heads=16,
    head_dim=None,
    max_position=131072,
    tie_embeddings=True,
    initializer_range=2.0 / (5.0 * 2048) ** 0.5,
    bos_token_id=128000,
    eos_token_id=128001,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    layer = LayerConfig(read_latent(fields, DEFAULTS), read_mlp(fields, DEFAULTS))
    return read_decoder(fields, DEFAULTS, (layer,) * read_num_layers(fields, DEFAULTS))


def write_config(config: ModelConfig) -> dict[str, object]:
    latent = config.layers[0].mixer
    return {
        **write_latent(config),
        "model_type": "youtu",
        "rope_interleave": isinstance(latent, LatentConfig) and latent.interleaved,
    }
