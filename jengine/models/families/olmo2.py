"""OLMo 2: post-norms only; QK-norm over all heads."""

from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.plain_decoder import ATTENTION_BIAS, PlainDecoder
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("Olmo2ForCausalLM",)
MODELS = "OLMo 2"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=50304,
    hidden_size=4096,
    intermediate_size=11008,
    num_layers=32,
    num_heads=32,
    num_kv_heads=None,
    head_dim=None,
    max_position=2048,
    norm_eps=1e-5,
    eos_token_id=50279,
)
PLAIN = PlainDecoder(
    "olmo2",
    DEFAULTS,
    (ATTENTION_BIAS,),
    attention={"qk_norm": "whole"},
    model={"norm_places": "after"},
)
read_config, write_config = PLAIN.read_config, PLAIN.write_config
