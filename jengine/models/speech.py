"""Speech model: the shared decoder with cross attention to an audio encoder.

In: log-mel spectrograms. Out: keys and values of every decoder layer, kept while a request runs.
Must not know files, prompts or caches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import SpeechConfig
from jengine.layers.linear import add_bias
from jengine.layers.mlp import ACTIVATIONS
from jengine.models.cross_attention import keys_and_values_of
from jengine.models.decoder import Decoder
from jengine.models.linear import Factory
from jengine.models.norms import make_norm
from jengine.models.parameter import normal, parameter, zeros
from jengine.models.vision_tower import VisionBlock

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float32

TAPS = 3  # width of the convolutions, in frames


class FrameConvolution(nnx.Module):
    """A convolution of width 3 over frames."""

    def __init__(self, factory: Factory, inputs: int, outputs: int, stride: int):
        self.stride = stride
        init = normal(factory.config.initializer_range)
        shape = (outputs, inputs, TAPS)
        self.weight = parameter(factory.rngs, shape, (None,) * 3, factory.dtype, init)
        self.bias = zeros(factory.rngs, (outputs,), (None,), factory.dtype)

    def __call__(self, x: Float32[Array, "frames inputs"]) -> Float32[Array, "outputs_frames out"]:
        weight = self.weight[...].astype(jnp.float32)
        padded = jnp.pad(x, ((1, 1), (0, 0)))
        parts = [padded[tap : tap + len(x) : self.stride] for tap in range(TAPS)]
        found = jnp.einsum("tfi,oit->fo", jnp.stack(parts), weight)
        return add_bias(found, self.bias[...])


class SpeechEncoder(nnx.Module):
    """Convolutions, positions, and bidirectional blocks over one audio."""

    def __init__(self, factory: Factory, speech: SpeechConfig):
        hidden = speech.hidden_size
        factory = replace(factory, config=replace(factory.config, hidden_size=hidden))
        self.first = FrameConvolution(factory, speech.mels, hidden, 1)
        self.second = FrameConvolution(factory, hidden, hidden, 2)
        shape, init = (speech.positions, hidden), normal(factory.config.initializer_range)
        self.table = parameter(factory.rngs, shape, (None, None), factory.dtype, init)
        layers = range(speech.num_layers)
        self.blocks = nnx.List([VisionBlock(factory, speech, layer) for layer in layers])
        self.norm = make_norm(factory, (hidden,), (None,))

    def __call__(self, mels: Float32[Array, "frames mels"]) -> Float32[Array, "positions hidden"]:
        gelu = ACTIVATIONS["gelu"]  # independent of the blocks' activation
        with jax.named_scope("convolutions"):
            x = gelu(self.second(gelu(self.first(mels))))
        x = x + self.table[...].astype(jnp.float32)
        segments = jnp.zeros((2, len(x)), jnp.int32)
        for layer, block in enumerate(self.blocks):
            with jax.named_scope(f"speech_{layer}"):
                x = block(x, segments, None)
        return self.norm(x)


class SpeechDecoder(Decoder):
    def add_parts(self, factory: Factory) -> None:
        speech = factory.config.speech
        assert speech is not None, "a family with an encoder reads its config"
        self.speech = SpeechEncoder(factory, speech)

    def encode(self, mels: Float32[Array, "frames mels"]) -> Float32[Array, "positions width"]:
        """Encode one audio: per position the cross-attention keys and values of all decoder
        layers."""
        return keys_and_values_of(self.layers, self.speech(mels))
