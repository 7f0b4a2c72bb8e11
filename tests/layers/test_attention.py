"""The causal mask with and without a window, and soft caps."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jengine.layers.attention import causal_mask
from jengine.layers.soft_cap import soft_cap


@pytest.mark.parametrize(("length", "window"), [(1, None), (6, None), (6, 1), (6, 4), (6, 9)])
def test_a_query_sees_itself_and_what_its_window_holds(length: int, window: int | None) -> None:
    found = np.asarray(causal_mask(length, window))
    for query in range(length):
        for key in range(length):
            near = window is None or query - key < window
            assert found[query, key] == (key <= query and near)


def test_a_soft_cap_bounds_and_keeps_small_values() -> None:
    x = jnp.asarray([-1e6, -50.0, 0.0, 0.01, 50.0, 1e6])
    expected = 50 * np.tanh(np.asarray(x, np.float64) / 50)
    np.testing.assert_allclose(soft_cap(x, 50.0), expected, rtol=1e-6)
    assert soft_cap(x, None) is x
