"""Feed-forward blocks: gated MLP, ungated MLP, or mixture of experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import ExpertsConfig, FfnConfig, MlpConfig
from jengine.layers.initializer import Initializer
from jengine.layers.mlp import gated, xielu
from jengine.layers.moe import Picked, route
from jengine.models.linear import Factory, Linear, Norm
from jengine.models.norms import RmsNorm
from jengine.models.parameter import parameter, zeros

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int


class GatedMLP(nnx.Module):
    """down(act(gate(x)) * up(x)), with gate and up in one matmul."""

    def __init__(self, factory: Factory, config: MlpConfig):
        hidden, inner = factory.config.hidden_size, config.intermediate_size
        self.activation, bias = config.activation, config.biases
        self.scale, self.gate_scale = config.output_scale, config.gate_scale
        axes, fused = ("embed", None, "mlp"), config.gate_scale == 1.0
        self.gate_up = Linear(
            factory, (hidden,), (2, inner), axes, bias=bias, gated=fused, inner=True
        )
        self.has_norm = config.inner_norm
        if config.inner_norm:
            self.norm = RmsNorm(factory, (inner,), (None,))
        self.down = Linear(factory, (inner,), (hidden,), ("mlp", "embed"), bias=bias)

    def __call__(
        self,
        x: Float[Array, "*tokens hidden"],
        *,
        norm: Norm | None = None,
        residual: Float[Array, "*tokens hidden"] | None = None,
        live: Int[Array, "*tokens"] | None = None,
    ) -> Float32[Array, "*tokens hidden"]:
        if self.gate_scale == 1.0:
            inner = self.gate_up(x, norm=norm, activation=self.activation, live=live)
        else:
            inner = self._scaled_gate(self.gate_up(x, norm=norm, live=live))
        if self.has_norm:
            inner = self.norm(inner)
        if self.scale == 1.0:
            return self.down(inner, residual=residual, live=live)
        made = self.down(inner, live=live) * self.scale
        return made if residual is None else residual + made

    def _scaled_gate(self, both: Float[Array, "*tokens 2 inner"]) -> Float[Array, "*tokens inner"]:
        """act(scale * gate) * up."""
        gate, up = both[..., 0, :] * self.gate_scale, both[..., 1, :]
        return gated(jnp.stack([gate, up], axis=-2), self.activation)


class PlainMLP(nnx.Module):
    """down(act(up(x))); the activation may have parameters (`xielu`)."""

    def __init__(self, factory: Factory, config: MlpConfig):
        hidden, inner = factory.config.hidden_size, config.intermediate_size
        assert not config.inner_norm, "no family has such a norm without gates"
        self.activation, bias = config.activation, config.biases
        self.up = Linear(factory, (hidden,), (inner,), ("embed", "mlp"), bias=bias, inner=True)
        self.is_learned = config.activation == "xielu"
        if self.is_learned:
            self.rates = Xielu(factory)
        self.down = Linear(factory, (inner,), (hidden,), ("mlp", "embed"), bias=bias)

    def __call__(
        self,
        x: Float[Array, "*tokens hidden"],
        *,
        norm: Norm | None = None,
        residual: Float[Array, "*tokens hidden"] | None = None,
        live: Int[Array, "*tokens"] | None = None,
    ) -> Float32[Array, "*tokens hidden"]:
        activation = None if self.is_learned else self.activation
        inner = self.up(x, norm=norm, activation=activation, live=live)
        if self.is_learned:
            inner = self.rates(inner)
        return self.down(inner, residual=residual, live=live)


class Xielu(nnx.Module):
    """xIELU with its learned parameters."""

    def __init__(self, factory: Factory):
        def number(mean: float) -> nnx.Param:
            return parameter(factory.rngs, (1,), (None,), factory.dtype, Initializer(mean=mean))

        # softplus of the first two is 0.8 and 0.3; the other two are equal in all models.
        self.positive, self.negative = number(0.2033), number(-1.0502)
        self.slope, self.highest = number(0.5), number(-1e-6)

    def __call__(self, x: Float[Array, "*shape"]) -> Float32[Array, "*shape"]:
        positive, negative, slope, highest = (
            jnp.broadcast_to(one[...].astype(jnp.float32), x.shape)
            for one in (self.positive, self.negative, self.slope, self.highest)
        )
        return xielu(x.astype(jnp.float32), positive, negative, slope, highest)


class ExpertsMLP(nnx.Module):
    """Router, stacked expert MLPs, and an optional shared MLP.

    gate_up is [experts, hidden, inner, 2], so that sharding `inner` shards gate and up columns
    alike. `chosen` records the experts of each token.
    """

    def __init__(self, factory: Factory, config: ExpertsConfig):
        self.config = config
        hidden, inner, count = (
            factory.config.hidden_size, config.intermediate_size, config.num_experts,
        )  # fmt: skip
        routing, bias = config.routing, config.biases
        exact = replace(factory, dtype=jnp.float32)
        self.router = Linear(
            exact if routing.exact else factory, (hidden,), (count,), ("embed", None),
            bias=routing.logits_bias,
        )  # fmt: skip
        if routing.choice_bias:
            self.choice_bias = zeros(factory.rngs, (count,), (None,), jnp.float32)
        axes = ("experts", "embed", "mlp", None)
        self.gate_up = Linear(factory, (hidden,), (inner, 2), axes, bias=bias, groups=count)
        axes = ("experts", "mlp", "embed")
        self.down = Linear(factory, (inner,), (hidden,), axes, bias=bias, groups=count)
        if config.shared_size:
            self.shared = GatedMLP(factory, MlpConfig(config.shared_size, config.activation))
        if config.out_norm:
            self.out_norm = RmsNorm(factory, (hidden,), ("embed",))
        if config.shared_gate:
            self.shared_gate = Linear(factory, (hidden,), (1,), ("embed", None))

    def __call__(
        self,
        x: Float[Array, "*tokens hidden"],
        *,
        norm: Norm | None = None,
        residual: Float[Array, "*tokens hidden"] | None = None,
        live: Int[Array, "*tokens"] | None = None,
        chosen: Callable[[Int[Array, "rows chosen"]], None] | None = None,
    ) -> Float32[Array, "*tokens hidden"]:
        flat = (x if norm is None else norm(x)).reshape(-1, x.shape[-1])
        rows = None if live is None else live.reshape(-1)
        logits, softmax = self.router(flat, live=rows), self.router.scheme.softmax
        bias = self.choice_bias[...] if self.config.routing.choice_bias else None
        count, routing = self.config.experts_per_token, self.config.routing
        picked = route(logits, count, routing, bias=bias, softmax=softmax)
        if chosen is not None:
            chosen(picked.experts)
        made = self._mixed(flat, picked, rows)
        if self.config.shared_size:
            made = made + self._shared(flat, rows)
        made = made.reshape(x.shape)
        if self.config.out_norm:
            made = self.out_norm(made)
        return made if residual is None else residual + made

    def _mixed(
        self, x: Float[Array, "tokens hidden"], picked: Picked, live: Int[Array, " tokens"] | None
    ) -> Float32[Array, "tokens hidden"]:
        """Weighted sum of the chosen experts' outputs."""
        weights = self.gate_up.stored(), self.down.stored()
        slots = self.gate_up.adapter_slots
        slots = self.down.adapter_slots if slots is None else slots
        picked, mix = picked._replace(slots=slots), self.gate_up.scheme.mix_experts
        if not self.config.routing.weighs_inputs:
            return mix(*weights, x, picked, self.config.activation, live)
        # Each (token, expert) pair becomes a token.
        count = self.config.experts_per_token
        pairs = x[:, None] * jnp.broadcast_to(
            picked.weights[..., None], (*picked.weights.shape, x.shape[-1])
        )
        slots = None if slots is None else jnp.repeat(slots, count)
        alone = Picked(jnp.ones((pairs.shape[0] * count, 1)), picked.experts.reshape(-1, 1), slots)
        rows = None if live is None else jnp.repeat(live, count)
        flat = pairs.reshape(-1, x.shape[-1])
        made = mix(*weights, flat, alone, self.config.activation, rows)
        return jnp.sum(made.reshape(pairs.shape), axis=1)

    def _shared(
        self, x: Float[Array, "tokens hidden"], live: Int[Array, " tokens"] | None
    ) -> Float32[Array, "tokens hidden"]:
        """Output of the shared MLP, gated if configured."""
        made = self.shared(x, live=live)
        if not self.config.shared_gate:
            return made
        gate = jax.nn.sigmoid(self.shared_gate(x, live=live))
        return made * jnp.broadcast_to(gate, made.shape)


def make_mlp(factory: Factory, config: FfnConfig) -> GatedMLP | PlainMLP | ExpertsMLP:
    if isinstance(config, ExpertsConfig):
        return ExpertsMLP(factory, config)
    return (GatedMLP if config.gated else PlainMLP)(factory, config)
