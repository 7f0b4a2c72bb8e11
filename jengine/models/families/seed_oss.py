"""Seed-OSS: Llama with QKV biases but none on the output projection."""

from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.plain_decoder import MLP_BIAS, BiasKey, PlainDecoder
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("SeedOssForCausalLM",)
MODELS = "Seed-OSS"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=155136,
    hidden_size=4096,
    intermediate_size=27648,
    num_layers=64,
    num_heads=80,
    num_kv_heads=8,
    head_dim=128,
    max_position=524288,
    bos_token_id=0,
    eos_token_id=2,
)
PLAIN = PlainDecoder(
    "seed_oss",
    DEFAULTS,
    (
        BiasKey("attention_bias", ("qkv",), True),
        BiasKey("attention_out_bias", ("output",)),
        MLP_BIAS,
    ),
)
read_config, write_config = PLAIN.read_config, PLAIN.write_config
