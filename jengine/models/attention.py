"""The attention layer: fused QKV matmul, attention, output matmul.

In: activations and a StepContext. Out: an addition to the residual stream. Must not know the KV
cache's layout, nor other layers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import AttentionConfig, RopeConfig
from jengine.layers.attention import AttentionInputs, HeadNorms, ReadInputs
from jengine.layers.distance_bias import biases_by_distance
from jengine.layers.norm import head_layer_norm, rms_norm
from jengine.layers.rope import rotate
from jengine.models.context import StepContext
from jengine.models.linear import Factory, Linear, Norm
from jengine.models.norms import RmsNorm, head_norms
from jengine.models.parameter import normal, parameter

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int


class Attention(nnx.Module):
    """The QKV matmul's outputs are grouped by KV head, [query group, key, value], so that one
    logical axis shards all three.

    `inputs` is the input width, by default the hidden size. Where layers share the weights, a call
    passes its `layer` index, and what the layer has `added` to the QKV matmul (LoRA-like).
    """

    def __init__(
        self, factory: Factory, config: AttentionConfig, layer: int, inputs: int | None = None
    ):
        self.layer = layer
        self.config = config
        hidden, kv, dim = factory.config.hidden_size, config.num_kv_heads, config.head_dim
        members = config.group + 2 - config.keys_are_values
        outputs, axes = (kv, members, dim), ("embed", "kv_heads", None, None)
        width = (hidden if inputs is None else inputs,)
        self.qkv = Linear(factory, width, outputs, axes, bias=config.qkv_bias, inner=True)
        if config.gated:
            outputs, axes = (kv, config.group, dim), ("embed", "kv_heads", None, None)
            self.gate = Linear(factory, (hidden,), outputs, axes, bias=config.qkv_bias)
        self.rope, self.eps = config.rope, factory.config.norm_eps
        if config.rope is not None and config.qk_norm in ("unit", "behind_rotation"):
            self.rope, self.eps = norm_first(config.rope, self.eps)
        norms = head_norms(factory, config)
        if norms is not None:
            self.q_norm, self.k_norm = norms
        if config.out_norm:
            self.out_norm = RmsNorm(factory, (config.num_heads * dim,), (None,))
        if config.sinks:
            init, shape = normal(factory.config.initializer_range), (kv, config.group)
            self.sinks = parameter(factory.rngs, shape, ("kv_heads", None), factory.dtype, init)
        if config.distance_bias is not None and config.distance_bias.is_own:
            init = normal(factory.config.initializer_range)
            shape, own = (kv, config.group, config.distance_bias.buckets), ("kv_heads", None, None)
            self.distance_bias = parameter(factory.rngs, shape, own, factory.dtype, init)
        mixed, axes = (kv, config.group, dim), ("kv_heads", None, None, "embed")
        heads = "kv_heads", "queries_of_kv_head", None  # axes of the attention output
        self.out = Linear(factory, mixed, (hidden,), axes, bias=config.output_bias, x_axes=heads)

    def __call__(
        self,
        x: Float[Array, "*tokens inputs"],
        context: StepContext,
        *,
        norm: Norm | None = None,
        residual: Float[Array, "*tokens hidden"] | None = None,
        added: Float[Array, "*tokens kv_heads members dim"] | None = None,
        layer: int | None = None,
    ) -> Float32[Array, "*tokens hidden"]:
        qkv = self.qkv(x, norm=norm, live=context.live)  # [..., KV, G + 2, D]
        qkv = qkv if added is None else qkv + added.astype(qkv.dtype)
        if self.config.clip is not None:
            qkv = jnp.clip(qkv, -self.config.clip, self.config.clip)
        if self.config.keys_are_values or self.config.value_norm:
            qkv = self._with_values(qkv)
        if self.config.qk_norm == "layer":
            qkv = self._with_layer_norms(qkv)
        if self.config.temperature is not None:
            qkv = qkv * self._temperature(context.positions)
        rope = self.rope
        rotation = None if rope is None else context.rotation(rope, self.config.head_dim)
        sinks = self.sinks[...] if self.config.sinks else None
        biases = None if self.config.distance_bias is None else self._biases(context)
        norms = None if self.config.qk_norm in (None, "layer") else self._norms()
        scale = self._query_scale() if self.config.qk_norm == "behind_rotation" else None
        inputs = AttentionInputs(self.config, qkv, norms, rotation, sinks, biases, scale)
        with jax.named_scope("attend"):
            mixed = context.mix(self.layer if layer is None else layer, inputs)
        mixed = mixed.reshape(*mixed.shape[:-2], -1)
        if self.config.gated:
            gate = jax.nn.sigmoid(self.gate(x, norm=norm, live=context.live))
            mixed = mixed * gate.reshape(mixed.shape).astype(mixed.dtype)
        if self.config.out_norm:
            mixed = self.out_norm(mixed)
        return self.out(mixed, residual=residual, live=context.live)

    def _biases(self, context: StepContext) -> Float32[Array, "kv_heads group distances"]:
        """Relative position biases by distance: this layer's, or those of the last layer with
        parameters for them."""
        config = self.config.distance_bias
        if config is not None and config.is_own:
            context.biases = biases_by_distance(
                self.distance_bias[...], config, bidirectional=self.config.bidirectional
            )
        assert context.biases is not None, "the first layer has its own"
        return context.biases

    def _with_values(
        self, qkv: Float[Array, "*tokens kv_heads members dim"]
    ) -> Float[Array, "*tokens kv_heads parts dim"]:
        """Normalise the values, or append them as copies of the keys, as configured."""
        values = qkv[..., -1:, :]
        rest = qkv if self.config.keys_are_values else qkv[..., :-1, :]
        if self.config.value_norm:
            ones = jnp.ones((self.config.head_dim,))
            values = rms_norm(values, ones, self.eps).astype(qkv.dtype)
        return jnp.concatenate([rest, values], axis=-2)

    def _temperature(
        self, positions: Int[Array, "*tokens"]
    ) -> Float32[Array, "*tokens kv_heads parts dim"]:
        """Position-dependent query scale (Llama 4's attention temperature), with ones for keys and
        values."""
        assert self.config.temperature is not None
        steps, growth = self.config.temperature
        passed = jnp.floor((positions.astype(jnp.float32) + 1.0) / steps)
        factor = 1.0 + growth * jnp.log1p(passed)
        kv, group, dim = self.config.num_kv_heads, self.config.group, self.config.head_dim
        shape = (*positions.shape, kv, group + 2, dim)
        is_query = jnp.broadcast_to(jnp.arange(group + 2)[:, None] < group, shape)
        return jnp.where(is_query, jnp.broadcast_to(factor[..., None, None, None], shape), 1.0)

    def _with_layer_norms(
        self, qkv: Float[Array, "*tokens kv_heads parts dim"]
    ) -> Float32[Array, "*tokens kv_heads parts dim"]:
        """Apply per-head layer norms to queries and keys."""
        parts = qkv[..., :-2, :], qkv[..., -2, :], qkv[..., -1:, :]
        q, k = (
            head_layer_norm(heads, norm.weight[...], norm.eps)
            for heads, norm in zip(parts[:2], (self.q_norm, self.k_norm), strict=True)
        )
        return jnp.concatenate([q, k[..., None, :], parts[2].astype(q.dtype)], axis=-2)

    def _query_scale(self) -> Float32[Array, " dim"]:
        """Elementwise product of the q and k norm weights when the norm follows rotation.

        A rotation keeps a head's length, so the norm can come first; the weights, elementwise after
        rotation, are folded into the queries since scores are dot products.
        """
        q, k = (norm.weight[...].astype(jnp.float32) for norm in (self.q_norm, self.k_norm))
        return q * k

    def _norms(self) -> HeadNorms:
        if self.config.qk_norm in ("unit", "behind_rotation"):
            ones = jnp.ones((self.config.head_dim,))
            return HeadNorms(ones, ones, self.eps, 0.0)
        weights = self.q_norm.weight[...], self.k_norm.weight[...]
        return HeadNorms(*weights, self.q_norm.eps, self.q_norm.offset)


def norm_first(rope: RopeConfig, eps: float) -> tuple[RopeConfig, float]:
    """For a QK-norm after rotation: the rotation and epsilon with which norming first gives the
    same result. The norm cancels the rotation's attention factor f, except that its epsilon becomes
    eps / f**2."""
    assert rope.rotated is None or rope.attention_factor == 1.0, "no family reads with both"
    return replace(rope, attention_factor=1.0), eps / rope.attention_factor**2


class ReadingAttention(nnx.Module):
    """Attention of a layer that reads an earlier layer's KV cache: it computes only queries."""

    def __init__(self, factory: Factory, config: AttentionConfig, layer: int):
        assert config.source is not None and config.source < layer
        plain = not (config.gated or config.sinks or config.temperature or config.bidirectional)
        plain = plain and config.clip is None and not config.out_norm
        assert plain and config.qk_norm == "head", "no family reads with other options"
        self.config = config
        hidden, kv, dim = factory.config.hidden_size, config.num_kv_heads, config.head_dim
        outputs, axes = (kv, config.group, dim), ("embed", "kv_heads", None, None)
        self.q = Linear(factory, (hidden,), outputs, axes, bias=config.qkv_bias, inner=True)
        self.q_norm = RmsNorm(factory, (dim,), ("head_dim",))
        mixed, axes = (kv, config.group, dim), ("kv_heads", None, None, "embed")
        heads = "kv_heads", "queries_of_kv_head", None
        self.out = Linear(factory, mixed, (hidden,), axes, bias=config.output_bias, x_axes=heads)

    def __call__(
        self,
        x: Float[Array, "*tokens hidden"],
        context: StepContext,
        *,
        norm: Norm | None = None,
        residual: Float[Array, "*tokens hidden"] | None = None,
    ) -> Float32[Array, "*tokens hidden"]:
        assert self.config.source is not None
        q = self.q_norm(self.q(x, norm=norm, live=context.live))  # [..., KV, G, D]
        if self.config.rope is not None:
            rotation = context.rotation(self.config.rope, self.config.head_dim)
            with jax.named_scope("rope"):
                heads = q.reshape(*q.shape[:-3], self.config.num_heads, self.config.head_dim)
                q = rotate(heads, *rotation).reshape(q.shape)
        with jax.named_scope("attend"):
            mixed = context.mix(self.config.source, ReadInputs(self.config, q))
        mixed = mixed.reshape(*mixed.shape[:-2], -1)
        return self.out(mixed, residual=residual, live=context.live)


def make_attention(
    factory: Factory, config: AttentionConfig, layer: int
) -> Attention | ReadingAttention:
    return (Attention if config.source is None else ReadingAttention)(factory, config, layer)
