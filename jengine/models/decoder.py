"""The decoder body that families share: embed, layers of mixer and feed-forward block, norm, head.

In: tokens and a StepContext. Out: hidden states; the context holds the new cache. Must not know
blocks, requests, sampling or checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import LatentConfig, MixerConfig, ModelConfig
from jengine.layers.soft_cap import soft_cap
from jengine.models.attention import Attention
from jengine.models.context import StepContext
from jengine.models.language_model import LanguageModel
from jengine.models.latent_attention import LatentAttention
from jengine.models.linear import Embedding, Factory, Linear
from jengine.models.mlp import make_mlp
from jengine.models.norms import NoNorm, Norm, make_norm, norms_around
from jengine.quantization.scheme import WeightScheme
from jengine.quantization.unquantized import UNQUANTIZED

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int


class DecoderLayer(nnx.Module):
    """Attention and feed-forward block, each added to the residual stream.

    Norms stand before, after or around each of the two. In a parallel block both read the layer's
    input.
    """

    def __init__(self, factory: Factory, layer: int):
        self.path = f"layers.{layer}"
        own = factory.config.layers[layer]
        self.before_attention, self.after_attention = norms_around(factory)
        self.attention = make_attention(factory, own.mixer, layer)
        self.block, self.scale = factory.config.block, factory.config.residual_scale
        if self.block != "parallel_one_norm":
            self.before_mlp, self.after_mlp = norms_around(factory)
        self.mlp = make_mlp(factory, own.ffn)

    def __call__(
        self, x: Float[Array, "*tokens hidden"], context: StepContext
    ) -> Float32[Array, "*tokens hidden"]:
        given = x
        with jax.named_scope("attention"):
            attention = partial(self.attention, given, context=context, norm=self.before_attention)
            x = self._added(x, attention, self.after_attention, context, "attention")
        before, after = self.before_attention, self.after_attention
        if self.block != "parallel_one_norm":
            before, after = self.before_mlp, self.after_mlp
        with jax.named_scope("mlp"):
            given = x if self.block == "serial" else given
            mlp = partial(self.mlp, given, norm=before, live=context.live)
            x = self._added(x, mlp, after, context, "mlp")
        return context.tap(f"{self.path}.output", x)

    def _added(
        self, x: Array, block: Callable[..., Array], after: Norm, context: StepContext, point: str
    ) -> Array:
        """x + block(). The block adds x itself where nothing comes between, so that its last matmul
        can be fused with the sum."""
        if isinstance(after, NoNorm) and not context.is_tapped and self.scale == 1.0:
            return block(residual=x)
        made = after(block())
        made = made if self.scale == 1.0 else made * self.scale
        return x + context.tap(f"{self.path}.{point}", made)


def make_attention(
    factory: Factory, config: MixerConfig, layer: int
) -> Attention | LatentAttention:
    """The attention of one layer."""
    if isinstance(config, LatentConfig):
        return LatentAttention(factory, config, layer)
    return Attention(factory, config, layer)


class Decoder(LanguageModel):
    """A decoder-only language model. Residual stream and logits are float32 in every dtype."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        dtype: Any = jnp.float32,
        rngs: nnx.Rngs | None,
        scheme: WeightScheme = UNQUANTIZED,
    ):
        self.config = config
        factory = Factory(config, dtype, rngs, scheme)
        hidden = config.hidden_size
        axes, tied = ("vocab", "embed"), config.tie_embeddings
        self.embed = Embedding(factory, config.vocab_size, axes, is_head=tied)
        if config.learned_positions:
            rows = config.max_position + config.position_offset
            self.position_embed = Embedding(factory, rows, (None, "embed"))
        self.layers = nnx.List([DecoderLayer(factory, i) for i in range(len(config.layers))])
        self.norm = make_norm(factory, (hidden,), ("embed",))
        if not config.tie_embeddings:
            axes, outputs = ("embed", "vocab"), (config.vocab_size,)
            self.head = Linear(factory, (hidden,), outputs, axes, bias=config.head_bias)

    def __call__(
        self, tokens: Int[Array, "*tokens"], context: StepContext
    ) -> Float32[Array, "*tokens hidden"]:
        """Hidden states after the final norm."""
        with jax.named_scope("embed"):
            x = context.tap("embed", self.embedded(tokens, context.positions))
        return context.tap("norm", self.norm(self.through_layers(x, context)))

    def through_layers(
        self, x: Float[Array, "*tokens hidden"], context: StepContext
    ) -> Float32[Array, "*tokens hidden"]:
        """The residual stream after all layers."""
        for index, layer in enumerate(self.layers):
            with jax.named_scope(f"layer_{index}"):
                x = layer(x, context)
        return x

    def embedded(
        self, tokens: Int[Array, "*tokens"], positions: Int[Array, "*tokens"]
    ) -> Float32[Array, "*tokens hidden"]:
        """The input of the first layer."""
        x = self.embed(tokens)
        if self.config.embed_scale != 1.0:
            # Rounded to the weights' dtype, as it was when the model was trained.
            dtype = self.embed.dtype
            x = x * jnp.asarray(self.config.embed_scale, dtype).astype(jnp.float32)
        if not self.config.learned_positions:
            return x
        return x + self.position_embed(positions + self.config.position_offset)

    def logits(self, hidden: Float[Array, "*tokens hidden"]) -> Float32[Array, "*tokens vocab"]:
        """Logits over the vocabulary."""
        return self.live_logits(hidden, None)

    def live_logits(
        self, hidden: Float[Array, "*tokens hidden"], live: Int[Array, "*tokens"] | None
    ) -> Float32[Array, "*tokens vocab"]:
        """Logits over the vocabulary; rows where `live` is -1 may be left out."""
        with jax.named_scope("head"):
            head = self.embed.as_head if self.config.tie_embeddings else self.head
            logits, scale = head(hidden, live=live), self.config.logit_scale
            scaled = logits if scale == 1.0 else logits * scale
            return soft_cap(scaled, self.config.logit_soft_cap)
