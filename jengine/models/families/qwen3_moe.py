"""Qwen3-MoE: Qwen3 with experts on all or some layers."""

from __future__ import annotations

from jengine.config import ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.hf_layers import expect_uniform_layers
from jengine.models.reading.hf_write import written_window
from jengine.models.reading.keys import ExpertKeys, SparseLayers, flag, integer
from jengine.models.reading.plain_decoder import ATTENTION_BIAS, PlainDecoder, Windows
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("Qwen3MoeForCausalLM",)
MODELS = "Qwen3 MoE"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=151936,
    hidden_size=2048,
    intermediate_size=6144,
    num_layers=24,
    num_heads=32,
    num_kv_heads=4,
    head_dim=None,
    max_position=32768,
)


def _read_windows(fields: Fields, num_layers: int) -> tuple[int | None, ...]:
    sliding = fields.flag("use_sliding_window", False)
    window = fields.optional_integer("sliding_window", 4096) if sliding else None
    expect_uniform_layers(fields, num_layers, "full" if window is None else "sliding")
    return (window,) * num_layers


def _write_windows(config: ModelConfig) -> dict[str, object]:
    window = written_window(config)
    return {"use_sliding_window": window is not None, "sliding_window": window}


def _read_sparse(fields: Fields, num_layers: int) -> set[int]:
    dense = fields.integers("mlp_only_layers", None, maximum=num_layers - 1, each="a layer")
    step = fields.integer("decoder_sparse_step", 1)
    return {layer for layer in range(num_layers) if layer not in dense and (layer + 1) % step == 0}


def _write_sparse(sparse: list[bool]) -> dict[str, object]:
    dense = [layer for layer, has_experts in enumerate(sparse) if not has_experts]
    return {"mlp_only_layers": dense, "decoder_sparse_step": 1}


EXPERTS = ExpertKeys(
    128,
    8,
    ("num_experts", "num_local_experts"),  # transformers 5 writes the second name
    {"intermediate_size": integer("moe_intermediate_size", 768)},
    {"normalize": flag("norm_topk_prob", False)},
    layers=SparseLayers(_read_sparse, _write_sparse),
)
PLAIN = PlainDecoder(
    "qwen3_moe",
    DEFAULTS,
    (ATTENTION_BIAS,),
    Windows(_read_windows, _write_windows),
    attention={"qk_norm": "head"},
    experts=EXPERTS,
)
read_config, write_config = PLAIN.read_config, PLAIN.write_config
