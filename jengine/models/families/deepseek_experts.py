"""Experts as configured by DeepSeek-V3 and the families that follow it.

In: a config.json's fields. Out: an ExpertsConfig, and back. Sigmoid router with a selection-only
bias, expert groups, a routed scaling factor, and shared experts.
"""

from __future__ import annotations

from jengine.config import Activation, ExpertsConfig, ModelConfig, RoutingConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import read_experts_count
from jengine.models.reading.hf_write import written_experts


def read_experts(
    fields: Fields,
    activation: Activation,
    *,
    experts: int,
    per_token: int,
    inner: int = 1408,
    scale: float = 1.0,
    groups: int = 1,
    top_groups: int = 1,
) -> ExpertsConfig:
    """Read the experts of sparse layers; the arguments are the family's defaults."""
    count, chosen = read_experts_count(
        fields, experts, per_token, "n_routed_experts", "num_local_experts"
    )
    groups = fields.integer("n_group", groups, maximum=count)
    if count % groups or (groups > 1 and count // groups < 2):
        fields.refuse("n_group", f"a divisor of the {count} experts, with two or more in a group")
    top_groups = fields.integer("topk_group", top_groups, maximum=groups)
    if chosen > count // groups * top_groups:
        fields.refuse("topk_group", f"groups that hold the {chosen} experts of a token")
    inner = fields.integer("moe_intermediate_size", inner)
    shared = fields.optional_integer("n_shared_experts", 1, minimum=0)
    return ExpertsConfig(
        count,
        chosen,
        inner,
        activation,
        RoutingConfig(
            scores="sigmoid",
            normalize=fields.flag("norm_topk_prob", True),
            scale=fields.number("routed_scaling_factor", scale),
            choice_bias=True,
            groups=groups,
            top_groups=top_groups,
            exact=True,
        ),
        shared_size=inner * (shared or 0),
    )


def write_experts(config: ModelConfig) -> dict[str, object]:
    """Inverse of `read_experts`, plus the number of leading dense layers."""
    experts = written_experts(config)
    routing = experts.routing
    is_sparse = [isinstance(layer.ffn, ExpertsConfig) for layer in config.layers]
    return {
        "n_routed_experts": experts.num_experts,
        "num_experts_per_tok": experts.experts_per_token,
        "n_group": routing.groups,
        "topk_group": routing.top_groups,
        "moe_intermediate_size": experts.intermediate_size,
        "n_shared_experts": experts.shared_size // experts.intermediate_size,
        "norm_topk_prob": routing.normalize,
        "routed_scaling_factor": routing.scale,
        "first_k_dense_replace": is_sparse.index(True),
    }
