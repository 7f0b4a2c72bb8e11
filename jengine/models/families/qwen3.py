"""Qwen3: QK-norm per head; head_dim is independent of hidden_size."""

from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.plain_decoder import ATTENTION_BIAS, LAYER_WINDOWS, PlainDecoder
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("Qwen3ForCausalLM",)
MODELS = "Qwen3"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=151936,
    hidden_size=4096,
    intermediate_size=22016,
    num_layers=32,
    num_heads=32,
    num_kv_heads=32,
    head_dim=128,
    max_position=32768,
)
PLAIN = PlainDecoder(
    "qwen3", DEFAULTS, (ATTENTION_BIAS,), LAYER_WINDOWS, attention={"qk_norm": "head"}
)
read_config, write_config = PLAIN.read_config, PLAIN.write_config
