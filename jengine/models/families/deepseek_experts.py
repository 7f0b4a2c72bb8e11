"""MoE settings of DeepSeek-V3 and its successors: sigmoid router with a selection-only bias, expert
groups, a routed scaling factor, and shared experts.

In: a config.json's fields. Out: feed-forward blocks of layers, and back.
"""

from __future__ import annotations

from typing import NamedTuple

from jengine.config import ExpertsConfig, FfnConfig, MlpConfig, ModelConfig, RoutingConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import read_experts_count
from jengine.models.reading.hf_latent import read_dense_layers
from jengine.models.reading.hf_write import written_experts
from jengine.models.reading.keys import SparseLayers, behind_dense


class GroupedExperts(NamedTuple):
    """A family's defaults, and which layers have experts."""

    experts: int
    per_token: int
    layers: SparseLayers
    inner: int = 1408
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    out_norm: bool = False

    def read_blocks(self, fields: Fields, mlp: MlpConfig, num_layers: int) -> list[FfnConfig]:
        experts, sparse = self._read(fields, mlp), set(self.layers.read(fields, num_layers))
        return [experts if layer in sparse else mlp for layer in range(num_layers)]

    def _read(self, fields: Fields, mlp: MlpConfig) -> ExpertsConfig:
        count, chosen = read_experts_count(
            fields, self.experts, self.per_token, "n_routed_experts", "num_local_experts"
        )
        groups = fields.integer("n_group", self.groups, maximum=count)
        if count % groups or (groups > 1 and count // groups < 2):
            expected = f"a divisor of the {count} experts, with two or more in a group"
            fields.refuse("n_group", expected)
        top_groups = fields.integer("topk_group", self.top_groups, maximum=groups)
        if chosen > count // groups * top_groups:
            fields.refuse("topk_group", f"groups that hold the {chosen} experts of a token")
        inner = fields.integer("moe_intermediate_size", self.inner)
        shared = fields.optional_integer("n_shared_experts", 1, minimum=0)
        routing = RoutingConfig(
            scores="sigmoid",
            normalize=fields.flag("norm_topk_prob", True),
            scale=fields.number("routed_scaling_factor", self.scale),
            choice_bias=True,
            groups=groups,
            top_groups=top_groups,
            exact=True,
        )
        return ExpertsConfig(
            count, chosen, inner, mlp.activation, routing,
            shared_size=inner * (shared or 0), out_norm=self.out_norm,
        )  # fmt: skip

    def write(self, config: ModelConfig) -> dict[str, object]:
        sparse = [isinstance(layer.ffn, ExpertsConfig) for layer in config.layers]
        return {**(write_experts(config) if any(sparse) else {}), **self.layers.write(sparse)}


def behind_first(default: int) -> SparseLayers:
    """The first `first_k_dense_replace` layers are dense; all others have experts."""
    counted = behind_dense("first_k_dense_replace", default)
    return SparseLayers(
        lambda fields, layers: range(read_dense_layers(fields, default, layers), layers),
        counted.write,
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
