"""EAGLE-3: a decoder layer that predicts tokens from hidden states of several target layers.

In: hidden states after some of the target's layers, or its own, and the token after each. Out: its
own hidden states, and logits over the target's vocabulary by its own head, which may cover a
reduced vocabulary. Must not know sampling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import AttentionConfig, ModelConfig
from jengine.layers.initializer import Initializer
from jengine.models.attention import Attention
from jengine.models.context import StepContext
from jengine.models.decoder import DecoderLayer
from jengine.models.draft_heads.heads import embedded, matrix, plain_factory
from jengine.models.linear import Embedding
from jengine.models.mlp import make_mlp
from jengine.models.norms import NoNorm, make_norm
from jengine.models.parameter import parameter

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int


@dataclass(frozen=True)
class Eagle3Form:
    """Variants among EAGLE-3 checkpoints."""

    aux_layers: tuple[int, ...]  # depths whose hidden states are read; (): the last
    draft_vocab: int  # size of the head's vocabulary, which may be reduced
    # Whether the first layer's residual is its normalised input; whether fc's inputs have a norm
    # (one over all, or one for each); whether the next draft reads normalised states.
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False


class FirstLayer(nnx.Module):
    """Decoder layer whose attention reads [embedding, hidden], each with its own norm."""

    def __init__(self, config: ModelConfig, form: Eagle3Form):
        factory, shape, own = plain_factory(config), (config.hidden_size,), config.layers[0]
        assert isinstance(own.mixer, AttentionConfig), "heads have plain attention"
        self.norm_before_residual = form.norm_before_residual
        self.embed_norm, self.hidden_norm, self.before_mlp = (
            make_norm(factory, shape, ("embed",)) for _ in range(3)
        )
        self.attention = Attention(factory, own.mixer, 0, inputs=2 * config.hidden_size)
        self.mlp = make_mlp(factory, own.ffn)

    def __call__(
        self,
        embeddings: Float[Array, "tokens hidden"],
        hidden: Float[Array, "tokens hidden"],
        context: StepContext,
    ) -> Float32[Array, "tokens hidden"]:
        hidden = hidden.astype(jnp.float32)
        normed = self.hidden_norm(hidden)
        both = jnp.concatenate([self.embed_norm(embeddings), normed], axis=-1)
        x = normed if self.norm_before_residual else hidden
        x = self.attention(both, context, residual=x)
        return self.mlp(x, norm=self.before_mlp, live=context.live, residual=x)


class Eagle3(nnx.Module):
    """fc over the target's hidden states, layers, and a head over a reduced vocabulary."""

    def __init__(
        self,
        config: ModelConfig,
        form: Eagle3Form,
        target: ModelConfig,
        embed: Embedding | None = None,
        *,
        has_head: bool = True,
    ):
        self.config = config
        self.points = tuple(point_after(layers) for layers in form.aux_layers)
        self.norm_output, self.vocab = form.norm_output, target.vocab_size
        factory, hidden = plain_factory(config), config.hidden_size
        self.embed = embed
        read = len(self.points) * target.hidden_size
        self.fc = matrix(config, read, hidden) if read else None
        is_normed = read and form.norm_before_fc
        self.norm_before_fc = make_norm(factory, (read,), ("embed",)) if is_normed else NoNorm()
        norms = len(self.points) if form.fc_norm else 0
        self.fc_norms = nnx.List(
            [make_norm(factory, (target.hidden_size,), ("embed",)) for _ in range(norms)]
        )
        self.first = FirstLayer(config, form)
        self.layers = nnx.List([DecoderLayer(factory, i) for i in range(1, len(config.layers))])
        self.norm = make_norm(factory, (hidden,), ("embed",))
        self.head = matrix(config, hidden, form.draft_vocab) if has_head else None
        self.knows_all = not has_head or form.draft_vocab == target.vocab_size
        if not self.knows_all:
            shape = (target.vocab_size,)
            self.places = parameter(None, shape, (None,), jnp.int32, Initializer())

    def states(self, hidden: Array, kept: Mapping[str, Array], live: Array | None = None) -> Array:
        """Inputs from the target: several layers' hidden states through fc."""
        if self.fc is None:
            return hidden
        found = [kept[point].astype(jnp.float32) for point in self.points]
        if self.fc_norms:
            found = [norm(x) for norm, x in zip(self.fc_norms, found, strict=True)]
        return self.fc(self.norm_before_fc(jnp.concatenate(found, axis=-1)), live=live)

    def __call__(
        self,
        tokens: Int[Array, " tokens"],
        hidden: Float[Array, "tokens hidden"],
        context: StepContext,
        target: Any,
    ) -> Float32[Array, "tokens hidden"]:
        x = self.first(embedded(self.embed, target, tokens), hidden, context)
        for layer in self.layers:
            x = layer(x, context)
        return self.norm(x) if self.norm_output else x

    def logits(
        self, states: Float[Array, "rows hidden"], live: Int[Array, " rows"], target: Any
    ) -> Float32[Array, "rows vocab"]:
        """Logits over the target's vocabulary; -inf for tokens outside the head's reduced
        vocabulary."""
        normed = states if self.norm_output else self.norm(states)
        if self.head is None:
            return target.live_logits(normed, live)
        logits = self.head(normed, live=live)
        if self.knows_all:
            return logits
        places = self.places[...]
        return jnp.where(places >= 0, logits[:, jnp.maximum(places, 0)], -jnp.inf)


def point_after(layers: int) -> str:
    """Tap point of the residual stream after `layers` layers."""
    return f"layers.{layers - 1}.output" if layers else "embed"
