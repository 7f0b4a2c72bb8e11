"""Phi-3, Phi-3.5 and Phi-4, also long-context variants: Llama with fused QKV and gate-up
tensors.
"""

from __future__ import annotations

from jengine.config import ModelConfig
from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.hf_write import written_attention
from jengine.models.reading.plain_decoder import PlainDecoder, one_window
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("Phi3ForCausalLM",)
MODELS = "Phi-3, Phi-3.5, Phi-4, Phi-4-mini"
NAMES = Names(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",))
DEFAULTS = Defaults(
    vocab_size=32064,
    hidden_size=3072,
    intermediate_size=8192,
    num_layers=32,
    num_heads=32,
    num_kv_heads=None,
    head_dim=None,
    max_position=4096,
    norm_eps=1e-5,
    partial_rotary=1.0,
    bos_token_id=1,
    eos_token_id=32000,
)
PLAIN = PlainDecoder("phi3", DEFAULTS, windows=one_window(None))
read_config = PLAIN.read_config


def write_config(config: ModelConfig) -> dict[str, object]:
    # transformers' default pad token exceeds small vocabularies.
    written = {**PLAIN.write_config(config), "pad_token_id": None}
    rope = written_attention(config).rope
    if rope is not None and rope.kind == "longrope":
        written["original_max_position_embeddings"] = rope.original_max_position
    return written
