"""What stands behind attention in a layer: a gated MLP, a plain one, or experts.

Which one a layer has is data in the config, decided when the layer is made.
"""

from __future__ import annotations

from typing import Any

from flax import nnx
from jax import Array

from jengine.config import ModelConfig, MoeConfig
from jengine.layers.mlp import gated_mlp, plain_mlp
from jengine.layers.moe import experts_mlp, route
from jengine.models.parameter import normal, parameter, zeros


class GatedMLP(nnx.Module):
    """Gate and up as one product, then down."""

    def __init__(self, config: ModelConfig, dtype: Any, rngs: nnx.Rngs | None):
        hidden, inner = config.hidden_size, config.intermediate_size
        init = normal(config.initializer_range)
        self.activation = config.activation
        self.gate_up = parameter(rngs, (hidden, 2, inner), ("embed", None, "mlp"), dtype, init)
        self.down = parameter(rngs, (inner, hidden), ("mlp", "embed"), dtype, init)

    def __call__(self, x: Array) -> Array:
        return gated_mlp(x, self.gate_up[...], self.down[...], self.activation)


class PlainMLP(nnx.Module):
    """Up and down, with biases."""

    def __init__(self, config: ModelConfig, dtype: Any, rngs: nnx.Rngs | None):
        hidden, inner = config.hidden_size, config.intermediate_size
        init = normal(config.initializer_range)
        self.activation = config.activation
        self.up = parameter(rngs, (hidden, inner), ("embed", "mlp"), dtype, init)
        self.up_bias = zeros(rngs, (inner,), ("mlp",), dtype)
        self.down = parameter(rngs, (inner, hidden), ("mlp", "embed"), dtype, init)
        self.down_bias = zeros(rngs, (hidden,), ("embed",), dtype)

    def __call__(self, x: Array) -> Array:
        up, down = (self.up[...], self.up_bias[...]), (self.down[...], self.down_bias[...])
        return plain_mlp(x, *up, *down, self.activation)


class ExpertsMLP(nnx.Module):
    """A router and the gated MLPs of all experts, stacked."""

    def __init__(self, config: ModelConfig, moe: MoeConfig, dtype: Any, rngs: nnx.Rngs | None):
        self.moe = moe
        self.activation = config.activation
        hidden, inner, count = config.hidden_size, moe.intermediate_size, moe.num_experts
        init = normal(config.initializer_range)
        self.router = parameter(rngs, (hidden, count), ("embed", None), dtype, init)
        shape = (count, hidden, inner, 2)
        self.gate_up = parameter(rngs, shape, ("experts", "embed", "mlp", None), dtype, init)
        shape = (count, inner, hidden)
        self.down = parameter(rngs, shape, ("experts", "mlp", "embed"), dtype, init)

    def __call__(self, x: Array) -> Array:
        flat = x.reshape(-1, x.shape[-1])
        moe = self.moe
        picked = route(flat, self.router[...], moe.experts_per_token, moe.normalize_weights)
        made = experts_mlp(flat, *picked, self.gate_up[...], self.down[...], self.activation)
        return made.reshape(x.shape)


def make_mlp(
    config: ModelConfig, layer: int, dtype: Any, rngs: nnx.Rngs | None
) -> GatedMLP | PlainMLP | ExpertsMLP:
    """The MLP of one layer."""
    moe = config.layer_moe(layer)
    if moe is not None:
        return ExpertsMLP(config, moe, dtype, rngs)
    kind = PlainMLP if config.mlp == "plain" else GatedMLP
    return kind(config, dtype, rngs)
