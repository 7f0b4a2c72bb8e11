"""Nemotron-4 and Minitron: layer norm weights stored minus one, partly rotated heads, squared-ReLU
MLP.
"""

from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.plain_decoder import ATTENTION_BIAS, MLP_BIAS, PlainDecoder
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("NemotronForCausalLM",)
MODELS = "Nemotron-4, Minitron"
NAMES = Names(gate_up=("mlp.up_proj",))
DEFAULTS = Defaults(
    vocab_size=256000,
    hidden_size=6144,
    intermediate_size=24576,
    num_layers=32,
    num_heads=48,
    num_kv_heads=None,
    head_dim=None,
    max_position=4096,
    norm_eps=1e-5,
    norm_eps_key="norm_eps",
    partial_rotary=0.5,
    activation="relu2",
    initializer_range=0.0134,
    bos_token_id=2,
    eos_token_id=3,
)
PLAIN = PlainDecoder(
    "nemotron",
    DEFAULTS,
    (ATTENTION_BIAS, MLP_BIAS),
    mlp={"gated": False},
    model={"norm": "layer_one_plus"},
)
read_config, write_config = PLAIN.read_config, PLAIN.write_config
