"""Feed-forward blocks as modules: a gated MLP, a plain one, or experts.

A layer's config says which one it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flax import nnx
from jax import Array

from jengine.config import ExpertsConfig, FfnConfig, MlpConfig
from jengine.layers.moe import route
from jengine.models.linear import Factory, Linear, Norm

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int


class GatedMLP(nnx.Module):
    """down(act(gate(x)) * up(x)), gate and up as one matmul."""

    def __init__(self, factory: Factory, config: MlpConfig):
        hidden, inner = factory.config.hidden_size, config.intermediate_size
        self.activation = config.activation
        axes = ("embed", None, "mlp")
        self.gate_up = Linear(factory, (hidden,), (2, inner), axes, gated=True, inner=True)
        self.down = Linear(factory, (inner,), (hidden,), ("mlp", "embed"))

    def __call__(
        self,
        x: Float[Array, "*tokens hidden"],
        *,
        norm: Norm | None = None,
        residual: Float[Array, "*tokens hidden"] | None = None,
        live: Int[Array, "*tokens"] | None = None,
    ) -> Float32[Array, "*tokens hidden"]:
        inner = self.gate_up(x, norm=norm, activation=self.activation, live=live)
        return self.down(inner, residual=residual, live=live)


class PlainMLP(nnx.Module):
    """down(act(up(x))), with biases."""

    def __init__(self, factory: Factory, config: MlpConfig):
        hidden, inner = factory.config.hidden_size, config.intermediate_size
        self.activation = config.activation
        self.up = Linear(factory, (hidden,), (inner,), ("embed", "mlp"), bias=True, inner=True)
        self.down = Linear(factory, (inner,), (hidden,), ("mlp", "embed"), bias=True)

    def __call__(
        self,
        x: Float[Array, "*tokens hidden"],
        *,
        norm: Norm | None = None,
        residual: Float[Array, "*tokens hidden"] | None = None,
        live: Int[Array, "*tokens"] | None = None,
    ) -> Float32[Array, "*tokens hidden"]:
        inner = self.up(x, norm=norm, activation=self.activation, live=live)
        return self.down(inner, residual=residual, live=live)


class ExpertsMLP(nnx.Module):
    """A router and the gated MLPs of all experts, stacked.

    gate_up is [experts, hidden, inner, 2], so that sharding `inner` also shards the columns of gate
    and up as one matrix.
    """

    def __init__(self, factory: Factory, config: ExpertsConfig):
        self.config = config
        hidden, inner, count = (
            factory.config.hidden_size, config.intermediate_size, config.num_experts,
        )  # fmt: skip
        self.router = Linear(factory, (hidden,), (count,), ("embed", None))
        axes = ("experts", "embed", "mlp", None)
        self.gate_up = Linear(factory, (hidden,), (inner, 2), axes, groups=count)
        axes = ("experts", "mlp", "embed")
        self.down = Linear(factory, (inner,), (hidden,), axes, groups=count)

    def __call__(
        self,
        x: Float[Array, "*tokens hidden"],
        *,
        norm: Norm | None = None,
        residual: Float[Array, "*tokens hidden"] | None = None,
        live: Int[Array, "*tokens"] | None = None,
    ) -> Float32[Array, "*tokens hidden"]:
        config = self.config
        flat = (x if norm is None else norm(x)).reshape(-1, x.shape[-1])
        logits, softmax = self.router(flat, live=live), self.router.scheme.softmax
        picked = route(logits, config.experts_per_token, config.normalize_weights, softmax)
        weights = self.gate_up.stored(), self.down.stored()
        rows = None if live is None else live.reshape(-1)
        mix = self.gate_up.scheme.mix_experts
        made = mix(*weights, flat, picked, config.activation, rows).reshape(x.shape)
        return made if residual is None else residual + made


def make_mlp(factory: Factory, config: FfnConfig) -> GatedMLP | PlainMLP | ExpertsMLP:
    """The feed-forward block of one layer."""
    if isinstance(config, ExpertsConfig):
        return ExpertsMLP(factory, config)
    return (GatedMLP if config.gated else PlainMLP)(factory, config)
