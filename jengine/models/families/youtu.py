"""Youtu-LLM: latent attention as in DeepSeek-V3, dense on every layer."""

from __future__ import annotations

from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.hf_latent import LatentDecoder
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
PLAIN = LatentDecoder("youtu", DEFAULTS)
read_config, write_config = PLAIN.read_config, PLAIN.write_config
