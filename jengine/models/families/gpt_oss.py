"""gpt-oss: attention sinks, a sliding window on every second layer, YaRN, biases everywhere, and
experts with clamped SwiGLU.
"""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import ModelConfig, RoutingConfig
from jengine.layers.mlp import SWIGLU_ALPHA, SWIGLU_LIMIT
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults, read_activation
from jengine.models.reading.hf_write import written_attention
from jengine.models.reading.keys import ExpertKeys
from jengine.models.reading.plain_decoder import ATTENTION_BIAS, PlainDecoder, layer_pattern
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("GptOssForCausalLM",)
MODELS = "gpt-oss"
NAMES = Names(
    router="mlp.router",
    expert_gate_up=("mlp.experts.gate_up_proj",),
    expert_down="mlp.experts.down_proj",
    expert_layout="inputs_first_pairs",
)
DEFAULTS = Defaults(
    vocab_size=201088,
    hidden_size=2880,
    intermediate_size=2880,
    num_layers=36,
    num_heads=64,
    num_kv_heads=8,
    head_dim=64,
    max_position=131072,
    norm_eps=1e-5,
    rope_theta=150000.0,
)
YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
# Fixed in published models; the experts' activation assumes it.
FIXED = {"swiglu_limit": SWIGLU_LIMIT, "swiglu_alpha": SWIGLU_ALPHA}
PLAIN = PlainDecoder(
    "gpt_oss",
    DEFAULTS,
    (ATTENTION_BIAS._replace(default=True),),
    layer_pattern(128, full_every=2),
    attention={"sinks": True},
    experts=ExpertKeys(
        128,
        4,
        ("num_local_experts", "num_experts"),
        routing=RoutingConfig(logits_bias=True),
        fixed={"activation": "clamped_swiglu", "biases": True},
    ),
    also_written={"hidden_act": "silu", **FIXED},
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    if hf.get("rope_parameters") is None and hf.get("rope_scaling") is None:
        hf = {**hf, "rope_parameters": YARN}
    fields = Fields(hf)
    for key, value in FIXED.items():
        if fields.number(key, value) != value:
            fields.refuse(key, str(value))
    if read_activation(fields, DEFAULTS.activation_key, DEFAULTS.activation) != "silu":
        fields.refuse("hidden_act", "silu")
    return PLAIN.read_config(hf)


def write_config(config: ModelConfig) -> dict[str, object]:
    attention = written_attention(config)
    plain = {"rope_type": "default"}  # if absent, YaRN is the default
    rope = {} if attention.rope and attention.rope.kind != "default" else {"rope_scaling": plain}
    return {**PLAIN.write_config(config), **rope}
