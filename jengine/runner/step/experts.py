"""The experts that each token was routed to, as one output array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax import Array

from jengine.runner.variants.buckets import ChosenExperts

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import UInt


def experts_of_tokens(
    by_layer: Mapping[int, Array], wanted: ChosenExperts, tokens: int
) -> UInt[Array, "tokens layers chosen"]:
    """Experts chosen by each token in every layer, zero-padded."""
    none = jnp.zeros((tokens, wanted.chosen), wanted.dtype)

    def of_layer(layer: int) -> Array:
        if layer not in by_layer:
            return none
        picked = by_layer[layer].astype(wanted.dtype)
        return jnp.pad(picked, ((0, 0), (0, wanted.chosen - picked.shape[1])))

    return jnp.stack([of_layer(layer) for layer in range(wanted.layers)], axis=1)
