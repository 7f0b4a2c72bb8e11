"""The decoder body all families share: embed, layers of attention and MLP, norm, head.

Comes in: tokens and positions, a cache and a function that attends through it. Goes out: hidden
states and the cache. Must not know pages, rows, sampling or checkpoints.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import ModelConfig
from jengine.layers.attention import AttentionFunction, dense_causal
from jengine.layers.linear import project
from jengine.layers.mlp import gated_mlp
from jengine.layers.norm import rms_norm
from jengine.layers.rope import rotate, rotation
from jengine.models.parameter import normal, ones, parameter, zeros


class Attention(nnx.Module):
    """Projections around attention. qkv is one product, grouped by kv head: [q of the group, k, v].

    Grouping by kv head lets one logical axis shard queries, keys and values together.
    """

    def __init__(self, config: ModelConfig, layer: int, dtype: Any, rngs: nnx.Rngs):
        self.layer = layer
        self.config = config
        kv, group = config.num_kv_heads, config.num_heads // config.num_kv_heads
        init = normal(config.initializer_range)
        shape = (config.hidden_size, kv, group + 2, config.head_dim)
        axes = ("embed", "kv_heads", None, None)
        self.qkv = parameter(rngs, shape, axes, dtype, init)
        if config.qkv_bias:
            self.qkv_bias = zeros(rngs, shape[1:], axes[1:], dtype)
        if config.qk_norm:
            self.q_norm = ones(rngs, config.head_dim, "head_dim", dtype)
            self.k_norm = ones(rngs, config.head_dim, "head_dim", dtype)
        out_shape = (kv, group, config.head_dim, config.hidden_size)
        self.out = parameter(rngs, out_shape, ("kv_heads", None, None, "embed"), dtype, init)
        if config.output_bias:
            self.out_bias = zeros(rngs, (config.hidden_size,), ("embed",), dtype)

    def __call__(
        self, x: Array, cos: Array, sin: Array, cache: Any, attend: AttentionFunction
    ) -> tuple[Array, Any]:
        q, k, v = self.queries_keys_values(x)
        with jax.named_scope("rope"):
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        with jax.named_scope("attend"):
            mixed, cache = attend(cache, self.layer, q, k, v)
        grouped = mixed.reshape(*mixed.shape[:-2], *self.out.shape[:2], self.config.head_dim)
        out = project("...kgd,kgdh->...h", grouped, self.out[...])
        if self.config.output_bias:
            out = out + jnp.broadcast_to(self.out_bias[...].astype(jnp.float32), out.shape)
        return out, cache

    def queries_keys_values(self, x: Array) -> tuple[Array, Array, Array]:
        """q [..., heads, dim], k and v [..., kv_heads, dim], normalised where the family does."""
        config = self.config
        fused = project("...h,hkgd->...kgd", x, self.qkv[...])  # [..., KV, G + 2, D]
        if config.qkv_bias:
            fused = fused + jnp.broadcast_to(self.qkv_bias[...].astype(jnp.float32), fused.shape)
        q, k, v = fused[..., :-2, :], fused[..., -2, :], fused[..., -1, :]
        q = q.reshape(*x.shape[:-1], config.num_heads, config.head_dim)
        if config.qk_norm:
            q = rms_norm(q, self.q_norm[...], config.norm_eps)
            k = rms_norm(k, self.k_norm[...], config.norm_eps)
        return q, k, v


class MLP(nnx.Module):
    """Gate and up as one product, then down."""

    def __init__(self, config: ModelConfig, dtype: Any, rngs: nnx.Rngs):
        hidden, inner = config.hidden_size, config.intermediate_size
        init = normal(config.initializer_range)
        self.activation = config.activation
        self.gate_up = parameter(rngs, (hidden, 2, inner), ("embed", None, "mlp"), dtype, init)
        self.down = parameter(rngs, (inner, hidden), ("mlp", "embed"), dtype, init)

    def __call__(self, x: Array) -> Array:
        return gated_mlp(x, self.gate_up[...], self.down[...], self.activation)


class DecoderLayer(nnx.Module):
    """Pre-norm attention and MLP, each added to the residual stream."""

    def __init__(self, config: ModelConfig, layer: int, dtype: Any, rngs: nnx.Rngs):
        self.eps = config.norm_eps
        self.attention_norm = ones(rngs, config.hidden_size, "embed", dtype)
        self.attention = Attention(config, layer, dtype, rngs)
        self.mlp_norm = ones(rngs, config.hidden_size, "embed", dtype)
        self.mlp = MLP(config, dtype, rngs)

    def __call__(
        self, x: Array, cos: Array, sin: Array, cache: Any, attend: AttentionFunction
    ) -> tuple[Array, Any]:
        with jax.named_scope("attention"):
            normed = rms_norm(x, self.attention_norm[...], self.eps)
            mixed, cache = self.attention(normed, cos, sin, cache, attend)
            x = x + mixed
        with jax.named_scope("mlp"):
            return x + self.mlp(rms_norm(x, self.mlp_norm[...], self.eps)), cache


class Decoder(nnx.Module):
    """A decoder-only language model. Residual stream and logits are float32 in every dtype."""

    def __init__(self, config: ModelConfig, *, dtype: Any = jnp.float32, rngs: nnx.Rngs):
        self.config = config
        init = normal(config.initializer_range)
        vocab, hidden = config.vocab_size, config.hidden_size
        self.embed = parameter(rngs, (vocab, hidden), ("vocab", "embed"), dtype, init)
        self.layers = nnx.List(
            [DecoderLayer(config, layer, dtype, rngs) for layer in range(len(config.layers))]
        )
        self.final_norm = ones(rngs, hidden, "embed", dtype)
        if not config.tie_embeddings:
            self.head = parameter(rngs, (hidden, vocab), ("embed", "vocab"), dtype, init)

    def __call__(
        self, tokens: Array, positions: Array, cache: Any, attend: AttentionFunction
    ) -> tuple[Array, Any]:
        """Hidden states after the final norm, [..., hidden], and the new cache."""
        with jax.named_scope("embed"):
            x = jnp.take(self.embed[...], tokens, axis=0, mode="clip").astype(jnp.float32)
        cos, sin = rotation(positions, self.config.rope, self.config.head_dim)
        for index, layer in enumerate(self.layers):
            with jax.named_scope(f"layer_{index}"):
                x, cache = layer(x, cos, sin, cache, attend)
        return rms_norm(x, self.final_norm[...], self.config.norm_eps), cache

    def logits(self, hidden: Array) -> Array:
        """Float32 logits over the vocabulary, [..., vocab]."""
        with jax.named_scope("head"):
            if self.config.tie_embeddings:
                return project("...h,vh->...v", hidden, self.embed[...])
            return project("...h,hv->...v", hidden, self.head[...])

    def score(self, tokens: Array) -> Array:
        """Logits of whole sequences [B, T] -> [B, T, vocab], without a cache."""
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1])[None, :], tokens.shape)
        windows = tuple(spec.window for spec in self.config.layers)
        hidden, _ = self(tokens, positions, None, dense_causal(windows))
        return self.logits(hidden)
