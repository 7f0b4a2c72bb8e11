"""Latent attention layer (MLA): queries, cache entries, attention, output matmul.

In: activations and a StepContext. Out: an addition to the residual stream. Must not know where
cache entries are stored, nor other layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import LatentConfig
from jengine.layers.latent import LatentInputs
from jengine.models.context import StepContext
from jengine.models.linear import Factory, Linear, Norm, Weighted
from jengine.models.norms import RmsNorm
from jengine.quantization.scheme import WeightShape
from jengine.quantization.unquantized import UNQUANTIZED

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32

HEAD_AXES = ("heads", None)


class LatentAttention(nnx.Module):
    """Low-rank or direct query projection, and low-rank keys and values, of which only the latent
    vector and the shared rotary key are cached."""

    def __init__(self, factory: Factory, config: LatentConfig, layer: int):
        self.layer = layer
        self.config = config
        hidden, heads, rank = factory.config.hidden_size, config.num_heads, config.query_rank
        if rank is not None:
            axes = ("embed", None)
            self.q_down = Linear(factory, (hidden,), (rank,), axes, bias=config.bias)
            self.q_norm = RmsNorm(factory, (rank,), (None,), eps=config.norm_eps)
        inputs, axes = (hidden, "embed") if rank is None else (rank, None)
        queries = heads, config.query_dim
        self.q = Linear(factory, (inputs,), queries, (axes, *HEAD_AXES), inner=True)
        entry = config.kv_rank + config.rope_dim
        self.kv_down = Linear(factory, (hidden,), (entry,), ("embed", None), bias=config.bias)
        self.kv_norm = RmsNorm(factory, (config.kv_rank,), (None,), eps=config.norm_eps)
        self.kv_up = KeysAndValues(factory, config)
        inputs, axes = (heads, config.value_dim), (*HEAD_AXES, "embed")
        self.out = Linear(factory, inputs, (hidden,), axes, bias=config.bias, x_axes=HEAD_AXES)

    def __call__(
        self,
        x: Float[Array, "*tokens hidden"],
        context: StepContext,
        *,
        norm: Norm | None = None,
        residual: Float[Array, "*tokens hidden"] | None = None,
    ) -> Float32[Array, "*tokens hidden"]:
        config, live = self.config, context.live
        if config.query_rank is None:
            q = self.q(x, norm=norm, live=live)
        else:
            q = self.q(self.q_down(x, norm=norm, live=live), norm=self.q_norm, live=live)
        low = self.kv_down(x, norm=norm, live=live)
        vector, key = jnp.split(low, [config.kv_rank], axis=-1)
        entries = jnp.concatenate([self.kv_norm(vector), key], axis=-1)
        rotation = context.rotation(config.rope, config.rope_dim)
        inputs = LatentInputs(config, q, entries, self.kv_up(), rotation)
        with jax.named_scope("attend"):
            mixed = context.mix(self.layer, inputs)
        mixed = mixed.reshape(*mixed.shape[:-2], -1)
        return self.out(mixed, residual=residual, live=live)


class KeysAndValues(Weighted):
    """Up-projection [nope + value, rank] per head. Used from both sides by the absorbed form
    (`layers.latent`), so it is not prepared."""

    def __init__(self, factory: Factory, config: LatentConfig):
        outputs = config.num_heads, config.nope_dim + config.value_dim
        shape = WeightShape((config.kv_rank,), outputs, (*HEAD_AXES, None), outputs_first=True)
        super().__init__(UNQUANTIZED, shape, factory)

    def __call__(self) -> Float[Array, "heads outputs rank"]:
        return self._step_tensors()["weight"]
