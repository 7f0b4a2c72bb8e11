"""The decoder body shared by families: embedding, layers of mixer and feed-forward block, norm,
head.

In: tokens and a StepContext. Out: hidden states; the context holds the new cache. Must not know
blocks, requests, sampling or checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import (
    AttentionConfig,
    DeltaConfig,
    ExpertsConfig,
    LatentConfig,
    Mamba2Config,
    MambaConfig,
    ModelConfig,
    SharedBlockConfig,
    ShortConvConfig,
    SideBySideConfig,
)
from jengine.layers.linear import add_bias
from jengine.layers.soft_cap import soft_cap
from jengine.models.attention import make_attention
from jengine.models.context import GivenEmbeddings, StepContext
from jengine.models.cross_attention import CrossAttention
from jengine.models.gated_delta import GatedDelta
from jengine.models.head_transform import HeadTransform
from jengine.models.language_model import LanguageModel
from jengine.models.latent_attention import LatentAttention
from jengine.models.layer_inputs import LayerInputs, make_ending
from jengine.models.linear import Embedding, Factory, Linear
from jengine.models.mamba import Mamba
from jengine.models.mamba2 import Mamba2
from jengine.models.mlp import make_mlp
from jengine.models.norms import NoNorm, Norm, make_norm, norms_around
from jengine.models.parameter import zeros
from jengine.models.shared_block import SharedThenRecurrent
from jengine.models.short_conv import ShortConv
from jengine.models.side_by_side import SideBySide
from jengine.quantization.scheme import WeightScheme
from jengine.quantization.unquantized import UNQUANTIZED

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int


class DecoderLayer(nnx.Module):
    """Mixer and feed-forward block, each added to the residual stream. Norms come before, after or
    around each block; parallel blocks both read the layer's input."""

    def __init__(self, factory: Factory, layer: int):
        self.index, self.path = layer, f"layers.{layer}"
        own = factory.config.layers[layer]
        self.before_attention, self.after_attention = norms_around(factory)
        self.attention = MIXERS[type(own.mixer)](factory, own.mixer, layer)
        if not own.attention_norm:
            self.before_attention = NoNorm()
        self.has_cross = own.cross is not None
        if own.cross is not None:
            self.before_cross, self.after_cross = norms_around(factory)
            self.cross = CrossAttention(factory, own.cross, factory.config.cross_index(layer))
        self.normalizes_sums = factory.config.norm_places == "sums"
        self.block, self.scale = factory.config.block, factory.config.residual_scale
        self.ending = make_ending(factory, layer)
        self.has_mlp = own.ffn.active_size > 0
        self.has_experts = isinstance(own.ffn, ExpertsConfig)
        if not self.has_mlp:
            return
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
        if self.has_cross:
            with jax.named_scope("cross_attention"):
                cross = partial(self.cross, x, context=context, norm=self.before_cross)
                x = self._added(x, cross, self.after_cross, context, "cross")
        if not self.has_mlp:
            return context.tap(f"{self.path}.output", self.ending(x, context))
        before, after = self.before_attention, self.after_attention
        if self.block != "parallel_one_norm":
            before, after = self.before_mlp, self.after_mlp
        with jax.named_scope("mlp"):
            given = x if self.block == "serial" else given
            mlp = partial(self.mlp, given, norm=before, live=context.live)
            if self.has_experts:
                mlp = partial(mlp, chosen=context.chosen_in(self.index))
            x = self._added(x, mlp, after, context, "mlp")
        return context.tap(f"{self.path}.output", self.ending(x, context))

    def _added(
        self, x: Array, block: Callable[..., Array], after: Norm, context: StepContext, point: str
    ) -> Array:
        """x + block(). Without a norm, scale or tap after the block, x is passed as its residual,
        so that its last matmul fuses the addition."""
        if isinstance(after, NoNorm) and not context.is_tapped and self.scale == 1.0:
            return block(residual=x)
        if self.normalizes_sums:
            if not context.is_tapped:
                return after(block(residual=x))
            return after(x + context.tap(f"{self.path}.{point}", block()))
        made = after(block())
        made = made if self.scale == 1.0 else made * self.scale
        return x + context.tap(f"{self.path}.{point}", made)


# Module class of each kind of mixer config.
MIXERS: dict[type, Callable[..., nnx.Module]] = {
    AttentionConfig: make_attention,
    LatentConfig: LatentAttention,
    ShortConvConfig: ShortConv,
    MambaConfig: Mamba,
    Mamba2Config: Mamba2,
    DeltaConfig: GatedDelta,
    SideBySideConfig: SideBySide,
    SharedBlockConfig: SharedThenRecurrent,
}


# (index, layer, input) -> the module to run, and its input.
Arrived = Callable[[int, nnx.Module, Array], tuple[Any, Array]]


class Decoder(LanguageModel):
    """A decoder-only language model. Residual stream and logits are float32 in every dtype."""

    # Hook before each layer: fetches offloaded parameters; in a pipeline, skips slots without a
    # layer.
    arrived: Arrived | None = None

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
        axes, tied = ("vocab", "embed"), config.tie_embeddings and config.pooling is None
        self.embed = Embedding(factory, config.vocab_size, axes, is_head=tied)
        if config.learned_positions:
            rows = config.max_position + config.position_offset
            self.position_embed = Embedding(factory, rows, (None, "embed"))
        if config.token_types:
            self.type_embed = Embedding(factory, config.token_types, (None, "embed"))
        if config.embed_norm:
            self.embed_norm = make_norm(factory, (hidden,), ("embed",))
        if config.layer_inputs is not None:
            self.layer_inputs = LayerInputs(factory, config.layer_inputs)
        self.layers = nnx.List([DecoderLayer(factory, i) for i in range(len(config.layers))])
        normed = config.norm_places == "sums"
        self.norm = NoNorm() if normed else make_norm(factory, (hidden,), ("embed",))
        if config.has_own_head:
            axes, outputs = ("embed", "vocab"), (config.vocab_size,)
            self.head = Linear(factory, (hidden,), outputs, axes, bias=config.head_bias)
        if config.has_logits_bias:
            self.logits_bias = zeros(rngs, (config.vocab_size,), ("vocab",), dtype)
        if config.head_transform is not None and config.pooling is None:
            self.head_transform = HeadTransform(factory, config.head_transform)
        self.add_parts(factory)

    def add_parts(self, factory: Factory) -> None:
        """Hook of subclasses: add modules beside the decoder, such as an encoder."""

    def __call__(
        self, tokens: Int[Array, "*tokens"], context: StepContext
    ) -> Float32[Array, "*tokens hidden"]:
        with jax.named_scope("embed"):
            x = context.tap("embed", self.embedded(tokens, context.positions, context.given))
            if self.config.layer_inputs is not None:
                context.layer_inputs = self.layer_inputs(tokens, x)
        return context.tap("norm", self.norm(self.through_layers(x, context)))

    def through_layers(
        self, x: Float[Array, "*tokens hidden"], context: StepContext
    ) -> Float32[Array, "*tokens hidden"]:
        """Run all layers on the residual stream."""
        for index, own in enumerate(self.layers):
            with jax.named_scope(f"layer_{index}"):
                layer, x = (own, x) if self.arrived is None else self.arrived(index, own, x)
                x = layer(x, context)
                for given in context.given:
                    x = given.after(index, x)
        return x

    def embedded(
        self,
        tokens: Int[Array, "*tokens"],
        positions: Int[Array, "*tokens"],
        given: Sequence[GivenEmbeddings] = (),
    ) -> Float32[Array, "*tokens hidden"]:
        """Embed tokens (with types, positions, given embeddings and norm, as configured)."""
        kinds, vocab = self.config.token_types, self.config.vocab_size
        # A token's type is encoded in its id: id + type * vocab.
        x = self.embed(tokens % vocab if kinds else tokens)
        x = x + self.type_embed(tokens // vocab) if kinds else x
        for one in given:
            x = x if one.is_final else one.over(x)
        x = self.scaled(x)
        for one in given:
            x = one.over(x) if one.is_final else x
        if self.config.learned_positions:
            x = x + self.position_embed(positions + self.config.position_offset)
        return self.embed_norm(x) if self.config.embed_norm else x

    def scaled(self, x: Float32[Array, "*tokens hidden"]) -> Float32[Array, "*tokens hidden"]:
        """Apply the model's embedding scale."""
        if self.config.embed_scale == 1.0:
            return x
        # Rounded to the weights' dtype, as in training.
        return x * jnp.asarray(self.config.embed_scale, self.embed.dtype).astype(jnp.float32)

    def logits(self, hidden: Float[Array, "*tokens hidden"]) -> Float32[Array, "*tokens vocab"]:
        return self.live_logits(hidden, None)

    def live_logits(
        self,
        hidden: Float[Array, "*tokens hidden"],
        live: Int[Array, "*tokens"] | None,
        added: Float32[Array, "*tokens vocab"] | None = None,
    ) -> Float32[Array, "*tokens vocab"]:
        """`logits`; rows with `live` -1 may be skipped. `added`: LoRA update of the output head."""
        with jax.named_scope("head"):
            head = self.embed.as_head if self.config.tie_embeddings else self.head
            if self.config.head_transform is not None:
                hidden = self.head_transform(hidden, live)
            logits, scale = head(hidden, live=live), self.config.logit_scale
            logits = logits if added is None else logits + added
            if self.config.has_logits_bias:
                logits = add_bias(logits, self.logits_bias[...])
            scaled = logits if scale == 1.0 else logits * scale
            return soft_cap(scaled, self.config.logit_soft_cap)
