"""StarCoder2: layer norms, an ungated MLP, biases everywhere, one sliding window for all layers."""

from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.plain_decoder import BiasKey, PlainDecoder, one_window
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("Starcoder2ForCausalLM",)
MODELS = "StarCoder2"
NAMES = Names(gate_up=("mlp.c_fc",), down="mlp.c_proj")
DEFAULTS = Defaults(
    vocab_size=49152,
    hidden_size=3072,
    intermediate_size=12288,
    num_layers=30,
    num_heads=24,
    num_kv_heads=2,
    head_dim=None,
    max_position=4096,
    norm_eps=1e-5,
    norm_eps_key="norm_epsilon",
    activation="gelu_pytorch_tanh",
    tie_embeddings=True,
    initializer_range=0.018042,
    bos_token_id=50256,
    eos_token_id=50256,
)
PLAIN = PlainDecoder(
    "starcoder2",
    DEFAULTS,
    (BiasKey("use_bias", ("qkv", "output", "mlp"), True),),
    one_window(None),
    mlp={"gated": False},
    model={"norm": "layer"},
)
read_config, write_config = PLAIN.read_config, PLAIN.write_config
