"""Llama 2 and 3: full attention on every layer, optional rope scaling."""

from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.plain_decoder import ATTENTION_BIAS, MLP_BIAS, PlainDecoder
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("LlamaForCausalLM",)
MODELS = "Llama 2, Llama 3"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=32000,
    hidden_size=4096,
    intermediate_size=11008,
    num_layers=32,
    num_heads=32,
    num_kv_heads=None,
    head_dim=None,
    max_position=2048,
    bos_token_id=1,
    eos_token_id=2,
)
PLAIN = PlainDecoder("llama", DEFAULTS, (ATTENTION_BIAS, MLP_BIAS))
read_config, write_config = PLAIN.read_config, PLAIN.write_config
