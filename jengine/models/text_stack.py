"""Encoder-decoder text model whose encoder uses decoder layers (T5).

In: packed token ids of any number of texts. Out: cross attention keys and values of every decoder
layer, kept while a request runs. Must not know prompts or caches.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import TextStackConfig
from jengine.layers.attention import AttentionInputs
from jengine.layers.segment_attention import segment_attention
from jengine.models.context import MixInputs, StepContext
from jengine.models.cross_attention import keys_and_values_of
from jengine.models.decoder import Decoder, DecoderLayer
from jengine.models.linear import Factory
from jengine.models.norms import make_norm
from jengine.models.text_encoder import TextInput

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float32, Int


class TextStack(nnx.Module):
    """Bidirectional layers within each text, and a final norm."""

    def __init__(self, factory: Factory, stack: TextStackConfig):
        factory = replace(factory, config=replace(factory.config, layers=stack.layers))
        self.positions = stack.positions
        self.layers = nnx.List([DecoderLayer(factory, i) for i in range(len(stack.layers))])
        self.norm = make_norm(factory, (factory.config.hidden_size,), ("embed",))

    def __call__(
        self, x: Float32[Array, "tokens hidden"], given: TextInput
    ) -> Float32[Array, "tokens hidden"]:
        mixer = partial(_within_texts, given.segments)
        context = StepContext(given.positions, given.segments, mixer, self.positions)
        for number, layer in enumerate(self.layers):
            with jax.named_scope(f"encoder_{number}"):
                x = layer(x, context)
        return self.norm(x)


def _within_texts(
    segments: Int[Array, " tokens"], caches: Any, layer: int, inputs: MixInputs
) -> tuple[Array, Any]:
    """A mixer without cache: tokens attend within their segment."""
    assert isinstance(inputs, AttentionInputs), "an encoder of text has attention"
    config, biases = inputs.config, inputs.biases
    biases = None if biases is None else biases.reshape(config.num_heads, -1)
    q, k, v = inputs.heads()
    k, v = (jnp.repeat(one, config.group, axis=-2) for one in (k, v))
    return segment_attention(q, k, v, segments, config.scale, biases), caches


class StackedEncoderDecoder(Decoder):
    """Decoder and encoder over one embedding."""

    def add_parts(self, factory: Factory) -> None:
        stack = factory.config.text_stack
        assert stack is not None, "a family with such an encoder reads its config"
        self.encoder = TextStack(factory, stack)

    def encode(self, given: TextInput) -> Float32[Array, "tokens width"]:
        """Cross attention keys and values of all layers per source token."""
        encoded = self.encoder(self.scaled(self.embed(given.ids)), given)
        return keys_and_values_of(self.layers, encoded)
