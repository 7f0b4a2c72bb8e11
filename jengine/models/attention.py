"""Projections around attention: queries, keys and values as one product, and the way back.

Comes in: normed activations, rotations, a cache and a function that attends through it. Must not
know where keys and values are kept, nor other layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx
from jax import Array

from jengine.config import ModelConfig, RopeConfig
from jengine.layers.attention import AttentionFunction, ScoreOptions
from jengine.layers.linear import add_bias, project
from jengine.layers.rope import rotate
from jengine.models.norms import head_norms
from jengine.models.parameter import normal, parameter, zeros

# cos and sin of each rope that the layers use, for the tokens of this call.
Rotations = Mapping[RopeConfig, tuple[Array, Array]]


class Attention(nnx.Module):
    """Projections around attention. qkv is one product, grouped by kv head: [q of the group, k, v].

    Grouping by kv head lets one logical axis shard queries, keys and values together.
    """

    def __init__(self, config: ModelConfig, layer: int, dtype: Any, rngs: nnx.Rngs | None):
        self.layer = layer
        self.config = config
        self.rope = config.layer_rope(layer)
        kv, group = config.num_kv_heads, config.num_heads // config.num_kv_heads
        init = normal(config.initializer_range)
        shape = (config.hidden_size, kv, group + 2, config.head_dim)
        axes = ("embed", "kv_heads", None, None)
        self.qkv = parameter(rngs, shape, axes, dtype, init)
        if config.qkv_bias:
            self.qkv_bias = zeros(rngs, shape[1:], axes[1:], dtype)
        self.q_norm, self.k_norm = head_norms(config, dtype, rngs)
        out_shape = (kv, group, config.head_dim, config.hidden_size)
        self.out = parameter(rngs, out_shape, ("kv_heads", None, None, "embed"), dtype, init)
        if config.output_bias:
            self.out_bias = zeros(rngs, (config.hidden_size,), ("embed",), dtype)

    def __call__(
        self, x: Array, rotations: Rotations, cache: Any, attend: AttentionFunction
    ) -> tuple[Array, Any]:
        q, k, v = self.queries_keys_values(x)
        if self.rope is not None:
            with jax.named_scope("rope"):
                q, k = (rotate(heads, *rotations[self.rope]) for heads in (q, k))
        with jax.named_scope("attend"):
            mixed, cache = attend(cache, self.layer, q, k, v, **score_options(self.config))
        # Two flat dimensions: XLA transposes the weight in every step for a contraction of three.
        flat = mixed.reshape(*mixed.shape[:-2], -1)
        out = project("...i,ih->...h", flat, self.out[...].reshape(-1, self.config.hidden_size))
        if self.config.output_bias:
            out = add_bias(out, self.out_bias[...])
        return out, cache

    def queries_keys_values(self, x: Array) -> tuple[Array, Array, Array]:
        """q [..., heads, dim], k and v [..., kv_heads, dim], normalised where the family does."""
        fused = project("...h,hkgd->...kgd", x, self.qkv[...])  # [..., KV, G + 2, D]
        if self.config.qkv_bias:
            fused = add_bias(fused, self.qkv_bias[...])
        q, k, v = fused[..., :-2, :], fused[..., -2, :], fused[..., -1, :]
        q, k = self.q_norm(q), self.k_norm(k)
        return q.reshape(*x.shape[:-1], self.config.num_heads, self.config.head_dim), k, v


def score_options(config: ModelConfig) -> ScoreOptions:
    """Only what departs from plain attention, so that attention functions may be plain too."""
    options: ScoreOptions = {}
    if config.attention_scale is not None:
        options["scale"] = config.attention_scale
    if config.attention_soft_cap is not None:
        options["soft_cap"] = config.attention_soft_cap
    return options
