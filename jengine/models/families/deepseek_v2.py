"""DeepSeek-V2 and V2-Lite: latent attention, dense first layers, then experts."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import Activation, ExpertsConfig, LayerConfig, ModelConfig, RoutingConfig
from jengine.models.families.deepseek_experts import write_experts
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    MOST_EXPERTS,
    Defaults,
    read_decoder,
    read_mlp,
    read_num_layers,
)
from jengine.models.reading.hf_latent import read_dense_layers, read_latent, write_latent
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("DeepseekV2ForCausalLM",)
MODELS = "DeepSeek-V2, V2-Lite"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=102400,
    hidden_size=4096,
    intermediate_size=11008,
    num_layers=32,
    num_heads=32,
    num_kv_heads=None,
    head_dim=None,
    max_position=2048,
    bos_token_id=1,
    eos_token_id=2,
)
# topk_method -> whether routing is group-limited.
METHODS = {"greedy": False, "group_limited_greedy": True}


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    fields.expect("mlp_bias", False, ": biases in the MLP are not supported")
    if not fields.flag("rope_interleave", True):
        fields.refuse("rope_interleave", "true: these models rotate neighbouring lanes")
    layers, latent = read_num_layers(fields, DEFAULTS), read_latent(fields, DEFAULTS)
    mlp = read_mlp(fields, DEFAULTS)
    dense = read_dense_layers(fields, 0, layers)
    experts = mlp if dense == layers else _read_experts(fields, mlp.activation)
    ffns = [mlp if layer < dense else experts for layer in range(layers)]
    return read_decoder(fields, DEFAULTS, tuple(LayerConfig(latent, ffn) for ffn in ffns))


def write_config(config: ModelConfig) -> dict[str, object]:
    family = {**write_latent(config), "model_type": "deepseek_v2"}
    if not config.has_experts:
        return {**family, "first_k_dense_replace": len(config.layers)}
    experts = write_experts(config)
    grouped = experts["n_group"] != 1
    return {**family, **experts, "topk_method": "group_limited_greedy" if grouped else "greedy"}


def _read_experts(fields: Fields, activation: Activation) -> ExpertsConfig:
    """Experts with softmax routing, scaled and unnormalised weights."""
    fields.choice("scoring_func", "softmax", {"softmax": None})
    fields.expect("norm_topk_prob", False, ": these models do not normalise weights")
    count = fields.integer("n_routed_experts", 64, maximum=MOST_EXPERTS)
    grouped = fields.choice("topk_method", "greedy", METHODS)
    groups = fields.integer("n_group", maximum=count) if grouped else 1
    if count % groups:
        fields.refuse("n_group", f"a divisor of the {count} experts")
    top_groups = fields.integer("topk_group", maximum=groups) if grouped else 1
    most = count // groups * top_groups
    inner = fields.integer("moe_intermediate_size", 1407)
    shared = fields.optional_integer("n_shared_experts", 2, minimum=0)
    return ExpertsConfig(
        count,
        fields.integer("num_experts_per_tok", maximum=most),
        inner,
        activation,
        RoutingConfig(
            normalize=False,
            scale=fields.number("routed_scaling_factor", 1.0),
            groups=groups,
            top_groups=top_groups,
            group_score="best",
            exact=True,
        ),
        shared_size=inner * (shared or 0),
    )
