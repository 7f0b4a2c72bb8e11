"""Mixtral: Mistral with experts on every layer."""

from __future__ import annotations

from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.keys import ExpertKeys
from jengine.models.reading.plain_decoder import PlainDecoder, one_window
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("MixtralForCausalLM",)
MODELS = "Mixtral"
NAMES = Names(
    router="block_sparse_moe.gate",
    experts="block_sparse_moe.experts",
    expert_gate_up=("w1", "w3"),
    expert_down="w2",
)
DEFAULTS = Defaults(
    vocab_size=32000,
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=None,
    max_position=131072,
    norm_eps=1e-5,
    rope_theta=1000000.0,
    bos_token_id=1,
    eos_token_id=2,
)
PLAIN = PlainDecoder(
    "mixtral",
    DEFAULTS,
    windows=one_window(None),
    experts=ExpertKeys(8, 2, ("num_local_experts",)),
)
read_config, write_config = PLAIN.read_config, PLAIN.write_config
