"""BitNet: Llama with a norm before each block's last matmul, trained for ternary weights."""

from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.plain_decoder import ATTENTION_BIAS, PlainDecoder
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("BitNetForCausalLM",)
MODELS = "BitNet b1.58"
NAMES = Names(out_norm="self_attn.attn_sub_norm", inner_norm="mlp.ffn_sub_norm")
DEFAULTS = Defaults(
    vocab_size=128256,
    hidden_size=2560,
    intermediate_size=6912,
    num_layers=30,
    num_heads=20,
    num_kv_heads=5,
    head_dim=None,
    max_position=2048,
    norm_eps=1e-5,
    rope_theta=500000.0,
    activation="relu2",
    bos_token_id=128000,
    eos_token_id=128001,
)
PLAIN = PlainDecoder(
    "bitnet",
    DEFAULTS,
    (ATTENTION_BIAS,),
    attention={"out_norm": True},
    mlp={"inner_norm": True},
)
read_config, write_config = PLAIN.read_config, PLAIN.write_config
