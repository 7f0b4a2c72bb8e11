"""Arcee AFM: Llama with an ungated squared-ReLU MLP."""

from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.plain_decoder import ATTENTION_BIAS, MLP_BIAS, PlainDecoder
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("ArceeForCausalLM",)
MODELS = "Arcee AFM"
NAMES = Names(gate_up=("mlp.up_proj",))
DEFAULTS = Defaults(
    vocab_size=32000,
    hidden_size=2560,
    intermediate_size=18432,
    num_layers=32,
    num_heads=32,
    num_kv_heads=None,
    head_dim=None,
    max_position=4096,
    norm_eps=1e-5,
    activation="relu2",
    bos_token_id=128000,
    eos_token_id=128001,
)
PLAIN = PlainDecoder("arcee", DEFAULTS, (ATTENTION_BIAS, MLP_BIAS), mlp={"gated": False})
read_config, write_config = PLAIN.read_config, PLAIN.write_config
