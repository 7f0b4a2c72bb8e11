"""ERNIE 4.5 (dense): Llama with interleaved rotary pairs."""

from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.plain_decoder import BiasKey, PlainDecoder
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("Ernie4_5ForCausalLM",)
MODELS = "ERNIE 4.5 (dense)"
NAMES = Names(rotates_neighbours=True)
DEFAULTS = Defaults(
    vocab_size=103424,
    hidden_size=1024,
    intermediate_size=3072,
    num_layers=18,
    num_heads=16,
    num_kv_heads=2,
    head_dim=128,
    max_position=131072,
    norm_eps=1e-5,
    rope_theta=500000.0,
    tie_embeddings=True,
    bos_token_id=1,
    eos_token_id=2,
)
PLAIN = PlainDecoder("ernie4_5", DEFAULTS, (BiasKey("use_bias", ("qkv", "output", "mlp")),))
read_config, write_config = PLAIN.read_config, PLAIN.write_config
