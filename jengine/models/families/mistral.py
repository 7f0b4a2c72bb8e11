"""Mistral: Llama with a sliding window on every layer or on none."""

from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.plain_decoder import PlainDecoder, one_window
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("MistralForCausalLM",)
MODELS = "Mistral"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=32000,
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=None,
    max_position=131072,
    bos_token_id=1,
    eos_token_id=2,
)
PLAIN = PlainDecoder("mistral", DEFAULTS, windows=one_window(4096))
read_config, write_config = PLAIN.read_config, PLAIN.write_config
