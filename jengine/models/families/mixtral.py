"""Mixtral: Mistral with experts on every layer."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import ExpertsConfig, ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults, read_experts_count
from jengine.models.reading.hf_write import written_ffn
from jengine.models.reading.plain_decoder import PlainDecoder, one_window, with_blocks
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
PLAIN = PlainDecoder("mixtral", DEFAULTS, windows=one_window(None))


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    config = PLAIN.read_config(hf)
    mlp = written_ffn(config)
    experts = ExpertsConfig(
        *read_experts_count(Fields(hf), 8, 2, "num_local_experts"),
        intermediate_size=mlp.intermediate_size,
        activation=mlp.activation,
    )
    return with_blocks(config, [experts] * len(config.layers))


def write_config(config: ModelConfig) -> dict[str, object]:
    written, ffn = PLAIN.write_config(config), written_ffn(config)
    if isinstance(ffn, ExpertsConfig):
        written["num_local_experts"] = ffn.num_experts
        written["num_experts_per_tok"] = ffn.experts_per_token
    return written
