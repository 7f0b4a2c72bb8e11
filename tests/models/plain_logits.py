"""A model's logits of whole sequences by plain attention, without a KV cache: an oracle."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jengine.models.decoder import Decoder


def lengthened(tokens: Sequence[int], multiple: int = 64) -> jax.Array:
    """[1, length], padded with zeros to few lengths, so that few programs are compiled.

    Under causal attention the padding changes no logits before it.
    """
    return jnp.asarray([[*tokens, *[0] * (-len(tokens) % multiple)]])


@nnx.jit
def _score(model: Decoder, tokens: jax.Array) -> jax.Array:
    return model.score(tokens)


def plain_logits(model: Decoder, tokens: Sequence[int]) -> np.ndarray:
    """Logits at every token, float32 [len(tokens), vocab]."""
    return np.asarray(_score(model, lengthened(tokens))[0, : len(tokens)])
