"""The decoder body that families share: embed, layers of mixer and feed-forward block, norm, head.

In: tokens and a StepContext. Out: hidden states; the context holds the new cache. Must not know
blocks, requests, sampling or checkpoints.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import ModelConfig
from jengine.layers.linear import project
from jengine.layers.soft_cap import soft_cap
from jengine.models.attention import Attention
from jengine.models.context import StepContext, whole_sequences
from jengine.models.mlp import make_mlp
from jengine.models.norms import make_norm, norms_around
from jengine.models.parameter import normal, parameter


class DecoderLayer(nnx.Module):
    """Attention and feed-forward block, each added to the residual stream.

    Norms stand before, after or around each of the two.
    """

    def __init__(self, config: ModelConfig, layer: int, dtype: Any, rngs: nnx.Rngs | None):
        self.path = f"layers.{layer}"
        own = config.layers[layer]
        self.before_attention, self.after_attention = norms_around(config, dtype, rngs)
        self.attention = Attention(config, own.mixer, layer, dtype, rngs)
        self.before_mlp, self.after_mlp = norms_around(config, dtype, rngs)
        self.mlp = make_mlp(config, own.ffn, dtype, rngs)

    def __call__(self, x: Array, context: StepContext) -> Array:
        with jax.named_scope("attention"):
            mixed = self.attention(self.before_attention(x), context)
            x = x + context.tap(f"{self.path}.attention", self.after_attention(mixed))
        with jax.named_scope("mlp"):
            made = self.mlp(self.before_mlp(x))
            x = x + context.tap(f"{self.path}.mlp", self.after_mlp(made))
        return context.tap(f"{self.path}.output", x)


class Decoder(nnx.Module):
    """A decoder-only language model. Residual stream and logits are float32 in every dtype."""

    def __init__(self, config: ModelConfig, *, dtype: Any = jnp.float32, rngs: nnx.Rngs | None):
        self.config = config
        init = normal(config.initializer_range)
        vocab, hidden = config.vocab_size, config.hidden_size
        self.embed = parameter(rngs, (vocab, hidden), ("vocab", "embed"), dtype, init)
        if config.learned_positions:
            positions = (config.max_position, hidden)
            self.position_embed = parameter(rngs, positions, (None, "embed"), dtype, init)
        self.layers = nnx.List(
            [DecoderLayer(config, layer, dtype, rngs) for layer in range(len(config.layers))]
        )
        self.norm = make_norm(config, (hidden,), ("embed",), dtype, rngs)
        if not config.tie_embeddings:
            self.head = parameter(rngs, (hidden, vocab), ("embed", "vocab"), dtype, init)

    def __call__(self, tokens: Array, context: StepContext) -> Array:
        """Hidden states after the final norm, [..., hidden]."""
        with jax.named_scope("embed"):
            x = context.tap("embed", self.embedded(tokens, context.positions))
        return context.tap("norm", self.norm(self.through_layers(x, context)))

    def through_layers(self, x: Array, context: StepContext) -> Array:
        """The residual stream after all layers."""
        for index, layer in enumerate(self.layers):
            with jax.named_scope(f"layer_{index}"):
                x = layer(x, context)
        return x

    def embedded(self, tokens: Array, positions: Array) -> Array:
        """What enters the first layer, float32."""
        x = jnp.take(self.embed[...], tokens, axis=0, mode="clip").astype(jnp.float32)
        if self.config.embed_scale != 1.0:
            # Rounded to the weights' dtype, as it was when the model was trained.
            x = x * jnp.asarray(self.config.embed_scale, self.embed.dtype).astype(jnp.float32)
        if self.config.learned_positions:
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
        return self.logits(self(tokens, whole_sequences(tokens.shape)))
