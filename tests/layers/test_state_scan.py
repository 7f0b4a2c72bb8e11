"""The decays between a tile's tokens, against float64."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jengine.layers.state_scan import causal_decay


def test_decays_between_neighbours_are_exact_far_from_the_tiles_begin() -> None:
    """Differences of sums from the begin were off by 1e-5 where little is left of the begin."""
    given = -5 * np.random.default_rng(0).random((3, 64, 2), np.float32)
    sums = np.moveaxis(np.cumsum(given, axis=1, dtype=np.float64), 1, 2)
    exact = np.tril(np.exp(np.minimum(sums[..., :, None] - sums[..., None, :], 0.0)))
    found = np.asarray(causal_decay(jnp.asarray(given)))
    large = exact > 1e-3
    np.testing.assert_allclose(found[large], exact[large], rtol=2e-6)
    np.testing.assert_allclose(found, exact, atol=1e-6)
