"""Feed-forward blocks as modules: a gated MLP, a plain one, or experts.

A layer's config says which one it has.
"""

from __future__ import annotations

from typing import Any

from flax import nnx
from jax import Array

from jengine.config import ExpertsConfig, FfnConfig, MlpConfig, ModelConfig
from jengine.layers.mlp import gated_mlp, plain_mlp
from jengine.layers.moe import experts_mlp, route
from jengine.models.parameter import normal, parameter, zeros


class GatedMLP(nnx.Module):
    """Gate and up as one matmul, then down."""

    def __init__(self, config: ModelConfig, mlp: MlpConfig, dtype: Any, rngs: nnx.Rngs | None):
        hidden, inner = config.hidden_size, mlp.intermediate_size
        init = normal(config.initializer_range)
        self.activation = mlp.activation
        self.gate_up = parameter(rngs, (hidden, 2, inner), ("embed", None, "mlp"), dtype, init)
        self.down = parameter(rngs, (inner, hidden), ("mlp", "embed"), dtype, init)

    def __call__(self, x: Array) -> Array:
        return gated_mlp(x, self.gate_up[...], self.down[...], self.activation)


class PlainMLP(nnx.Module):
    """Up and down, with biases."""

    def __init__(self, config: ModelConfig, mlp: MlpConfig, dtype: Any, rngs: nnx.Rngs | None):
        hidden, inner = config.hidden_size, mlp.intermediate_size
        init = normal(config.initializer_range)
        self.activation = mlp.activation
        self.up = parameter(rngs, (hidden, inner), ("embed", "mlp"), dtype, init)
        self.up_bias = zeros(rngs, (inner,), ("mlp",), dtype)
        self.down = parameter(rngs, (inner, hidden), ("mlp", "embed"), dtype, init)
        self.down_bias = zeros(rngs, (hidden,), ("embed",), dtype)

    def __call__(self, x: Array) -> Array:
        up, down = (self.up[...], self.up_bias[...]), (self.down[...], self.down_bias[...])
        return plain_mlp(x, *up, *down, self.activation)


class ExpertsMLP(nnx.Module):
    """A router and the gated MLPs of all experts, stacked."""

    def __init__(
        self, config: ModelConfig, experts: ExpertsConfig, dtype: Any, rngs: nnx.Rngs | None
    ):
        self.config = experts
        hidden, inner = config.hidden_size, experts.intermediate_size
        count = experts.num_experts
        init = normal(config.initializer_range)
        self.router = parameter(rngs, (hidden, count), ("embed", None), dtype, init)
        shape = (count, hidden, inner, 2)
        self.gate_up = parameter(rngs, shape, ("experts", "embed", "mlp", None), dtype, init)
        shape = (count, inner, hidden)
        self.down = parameter(rngs, shape, ("experts", "mlp", "embed"), dtype, init)

    def __call__(self, x: Array) -> Array:
        config, flat = self.config, x.reshape(-1, x.shape[-1])
        picked = route(flat, self.router[...], config.experts_per_token, config.normalize_weights)
        matrices = self.gate_up[...], self.down[...]
        return experts_mlp(flat, *picked, *matrices, config.activation).reshape(x.shape)


def make_mlp(
    config: ModelConfig, ffn: FfnConfig, dtype: Any, rngs: nnx.Rngs | None
) -> GatedMLP | PlainMLP | ExpertsMLP:
    """The feed-forward block of one layer."""
    if isinstance(ffn, ExpertsConfig):
        return ExpertsMLP(config, ffn, dtype, rngs)
    kind = GatedMLP if ffn.gated else PlainMLP
    return kind(config, ffn, dtype, rngs)
