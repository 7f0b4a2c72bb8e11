"""Qwen2 and Qwen2.5: Llama with QKV biases."""

from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.plain_decoder import LAYER_WINDOWS, PlainDecoder
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("Qwen2ForCausalLM",)
MODELS = "Qwen2, Qwen2.5"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=151936,
    hidden_size=4096,
    intermediate_size=22016,
    num_layers=32,
    num_heads=32,
    num_kv_heads=32,
    head_dim=None,
    max_position=32768,
)
PLAIN = PlainDecoder("qwen2", DEFAULTS, windows=LAYER_WINDOWS, attention={"qkv_bias": True})
read_config, write_config = PLAIN.read_config, PLAIN.write_config
