"""The causal mask with and without a window, and soft caps."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jengine.config import AttentionConfig
from jengine.layers.attention import AttentionInputs, causal_mask, dense_attention
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


def test_a_sink_takes_its_share_of_the_attention() -> None:
    """As written down: exp(score) / (sum of exp(scores) + exp(sink)), in float64."""
    rng = np.random.default_rng(0)
    qkv, sinks = rng.normal(size=(1, 5, 2, 3 + 2, 4)), rng.normal(size=(2, 3))
    config = AttentionConfig(num_heads=6, num_kv_heads=2, head_dim=4, rope=None, sinks=True)
    given = jnp.asarray(qkv, jnp.float32), None, None, jnp.asarray(sinks, jnp.float32)
    found = np.asarray(dense_attention(AttentionInputs(config, *given)))
    for token in range(5):
        for kv in range(2):
            for member in range(3):
                query, seen = qkv[0, token, kv, member], qkv[0, : token + 1, kv]
                scores = np.exp(seen[:, -2] @ query / 2)
                expected = scores @ seen[:, -1] / (scores.sum() + np.exp(sinks[kv, member]))
                np.testing.assert_allclose(found[0, token, kv * 3 + member], expected, atol=1e-5)
