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
from jengine.layers.rope import rotation
from jengine.layers.soft_cap import soft_cap
from jengine.models.attention import Attention, Rotations
from jengine.models.mlp import make_mlp
from jengine.models.norms import make_norm, norms_around
from jengine.models.parameter import normal, parameter
from jengine.models.taps import Tap, untapped, within


class DecoderLayer(nnx.Module):
    """Attention and MLP, normalised before, after or around, each added to the residual stream."""

    def __init__(self, config: ModelConfig, layer: int, dtype: Any, rngs: nnx.Rngs | None):
        self.before_attention, self.after_attention = norms_around(config, dtype, rngs)
        self.attention = Attention(config, layer, dtype, rngs)
        self.before_mlp, self.after_mlp = norms_around(config, dtype, rngs)
        self.mlp = make_mlp(config, layer, dtype, rngs)

    def __call__(
        self, x: Array, rotations: Rotations, cache: Any, attend: AttentionFunction, tap: Tap
    ) -> tuple[Array, Any]:
        with jax.named_scope("attention"):
            mixed, cache = self.attention(self.before_attention(x), rotations, cache, attend)
            x = x + tap("attention", self.after_attention(mixed))
        with jax.named_scope("mlp"):
            x = x + tap("mlp", self.after_mlp(self.mlp(self.before_mlp(x))))
        return tap("output", x), cache


class Decoder(nnx.Module):
    """A decoder-only language model. Residual stream and logits are float32 in every dtype."""

    def __init__(self, config: ModelConfig, *, dtype: Any = jnp.float32, rngs: nnx.Rngs | None):
        self.config = config
        init = normal(config.initializer_range)
        vocab, hidden = config.vocab_size, config.hidden_size
        self.embed = parameter(rngs, (vocab, hidden), ("vocab", "embed"), dtype, init)
        if config.rope is None:
            positions = (config.max_position, hidden)
            self.position_embed = parameter(rngs, positions, (None, "embed"), dtype, init)
        self.layers = nnx.List(
            [DecoderLayer(config, layer, dtype, rngs) for layer in range(len(config.layers))]
        )
        self.norm = make_norm(config, (hidden,), ("embed",), dtype, rngs)
        if not config.tie_embeddings:
            self.head = parameter(rngs, (hidden, vocab), ("embed", "vocab"), dtype, init)

    def __call__(
        self,
        tokens: Array,
        positions: Array,
        cache: Any,
        attend: AttentionFunction,
        tap: Tap = untapped,
    ) -> tuple[Array, Any]:
        """Hidden states after the final norm, [..., hidden], and the new cache."""
        with jax.named_scope("embed"):
            x = tap("embed", self.embedded(tokens, positions))
        x, cache = self.through_layers(x, positions, cache, attend, tap)
        return tap("norm", self.norm(x)), cache

    def through_layers(
        self, x: Array, positions: Array, cache: Any, attend: AttentionFunction, tap: Tap
    ) -> tuple[Array, Any]:
        """What the layers make of the residual stream, and the new cache."""
        rotations = {
            rope: rotation(positions, rope, self.config.head_dim) for rope in self.config.ropes
        }
        for index, layer in enumerate(self.layers):
            with jax.named_scope(f"layer_{index}"):
                x, cache = layer(x, rotations, cache, attend, within(tap, f"layers.{index}"))
        return x, cache

    def embedded(self, tokens: Array, positions: Array) -> Array:
        """What enters the first layer, float32."""
        x = jnp.take(self.embed[...], tokens, axis=0, mode="clip").astype(jnp.float32)
        if self.config.embed_scale != 1.0:
            # Rounded to the weights' dtype, as it was when the model was trained.
            x = x * jnp.asarray(self.config.embed_scale, self.embed.dtype).astype(jnp.float32)
        if self.config.rope is None:
            learned = jnp.take(self.position_embed[...], positions, axis=0, mode="clip")
            x = x + learned.astype(jnp.float32)
        return x

    def logits(self, hidden: Array) -> Array:
        """Float32 logits over the vocabulary, [..., vocab]."""
        with jax.named_scope("head"):
            if self.config.tie_embeddings:
                logits = project("...h,vh->...v", hidden, self.embed[...])
            else:
                logits = project("...h,hv->...v", hidden, self.head[...])
            return soft_cap(logits, self.config.logit_soft_cap)

    def score(self, tokens: Array) -> Array:
        """Logits of whole sequences [B, T] -> [B, T, vocab], without a cache."""
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1])[None, :], tokens.shape)
        windows = tuple(spec.window for spec in self.config.layers)
        hidden, _ = self(tokens, positions, None, dense_causal(windows))
        return self.logits(hidden)
