"""Qwen2-MoE: experts on all or some layers, and a gated shared MLP."""

from __future__ import annotations

from jengine.models.families import qwen3_moe
from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.keys import flag, integer
from jengine.models.reading.plain_decoder import BiasKey, PlainDecoder
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("Qwen2MoeForCausalLM",)
MODELS = "Qwen1.5 MoE, Qwen2 MoE"
NAMES = Names(
    shared_gate_up=("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
    shared_down="mlp.shared_expert.down_proj",
)
DEFAULTS = Defaults(
    vocab_size=151936,
    hidden_size=2048,
    intermediate_size=5632,
    num_layers=24,
    num_heads=16,
    num_kv_heads=16,
    head_dim=None,
    max_position=32768,
)
EXPERTS = qwen3_moe.EXPERTS._replace(
    experts=60,
    per_token=4,
    keys={
        "intermediate_size": integer("moe_intermediate_size", 1408),
        "shared_size": integer("shared_expert_intermediate_size", 5632),
    },
    fixed={"shared_gate": True},
)
# The same with Qwen3-Next's defaults.
SMALL_EXPERTS = EXPERTS._replace(
    experts=512,
    per_token=10,
    keys={field: key._replace(usual=512) for field, key in EXPERTS.keys.items()},
    routing_keys={"normalize": flag("norm_topk_prob", True)},
)
PLAIN = PlainDecoder(
    "qwen2_moe",
    DEFAULTS,
    (BiasKey("qkv_bias", ("qkv",), True),),
    experts=EXPERTS,
    expected=(("use_sliding_window", False, ", as in all published Qwen2 MoE"),),
    also_written={"use_sliding_window": False},
)
read_config, write_config = PLAIN.read_config, PLAIN.write_config
