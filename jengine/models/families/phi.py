"""Phi-1, Phi-1.5 and Phi-2: parallel block with one norm, biases everywhere including the logits,
partly rotated heads.
"""

from __future__ import annotations

from jengine.config import ModelConfig
from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.plain_decoder import PlainDecoder
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("PhiForCausalLM",)
MODELS = "Phi-1, Phi-1.5, Phi-2"
NAMES = Names(
    final_norm="final_layernorm",
    attention_out="self_attn.dense",
    gate_up=("mlp.fc1",),
    down="mlp.fc2",
)
DEFAULTS = Defaults(
    vocab_size=51200,
    hidden_size=2048,
    intermediate_size=8192,
    num_layers=24,
    num_heads=32,
    num_kv_heads=None,
    head_dim=None,
    max_position=2048,
    norm_eps=1e-5,
    norm_eps_key="layer_norm_eps",
    partial_rotary=0.5,
    activation="gelu_new",
    bos_token_id=1,
    eos_token_id=2,
)
PLAIN = PlainDecoder(
    "phi",
    DEFAULTS,
    attention={"qkv_bias": True, "output_bias": True},
    mlp={"gated": False, "biases": True},
    model={"norm": "layer", "block": "parallel_one_norm", "head_bias": True},
    expected=(
        ("qk_layernorm", False, ", as in all published Phi"),
        ("tie_word_embeddings", False, ", as in all published Phi"),
    ),
)
read_config = PLAIN.read_config


def write_config(config: ModelConfig) -> dict[str, object]:
    written = PLAIN.write_config(config)
    # Phi's own name of the same function.
    gelu_new = written["hidden_act"] == "gelu_pytorch_tanh"
    return {**written, "hidden_act": "gelu_new" if gelu_new else written["hidden_act"]}
