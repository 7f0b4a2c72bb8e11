"""Attention to later tokens of the same image, next to one softmax over all that a token sees."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jengine.runner.step.image_attention import Later, attention_ahead, with_ahead

HEADS, KV, DIM = 4, 2, 8


@pytest.mark.parametrize("soft_cap", [None, 2.0])
def test_earlier_and_later_tokens_are_one_softmax(soft_cap: float | None) -> None:
    rng = np.random.default_rng(0)
    tokens, images = 90, [(3, 20), (25, 75), (76, 80)]
    q = rng.normal(size=(tokens, HEADS, DIM)).astype(np.float32)
    k, v = (rng.normal(size=(tokens, KV, DIM)).astype(np.float32) for _ in range(2))
    ahead = np.zeros(tokens, np.int32)
    for begin, end in images:
        ahead[begin:end] = end - 1 - np.arange(begin, end)
    scores = np.einsum("tkgd,skd->tkgs", q.reshape(tokens, KV, -1, DIM), k) * 0.5
    scores = scores if soft_cap is None else soft_cap * np.tanh(scores / soft_cap)
    place = np.arange(tokens)
    distance = (place[None, :] - place[:, None])[:, None, None]
    sees_later = (distance > 0) & (distance <= ahead[:, None, None, None])

    @jax.jit
    def attend(seen: np.ndarray) -> tuple[jax.Array, jax.Array]:
        masked = jnp.where(seen, scores, -jnp.inf)
        mixed = jnp.einsum("tkgs,skd->tkgd", jax.nn.softmax(masked, axis=-1), v)
        total = jax.nn.logsumexp(masked, axis=-1)
        return mixed.reshape(q.shape), total.reshape(tokens, HEADS)

    wanted, _ = attend((distance <= 0) | sees_later)
    earlier = attend(distance <= 0)
    later = Later(jnp.asarray(k), jnp.asarray(v), jnp.asarray(ahead))

    @jax.jit
    def joined(mixed: jax.Array, total: jax.Array, q: jax.Array, later: Later) -> jax.Array:
        seen = attention_ahead(q, later, 49, scale=0.5, soft_cap=soft_cap)
        return with_ahead(mixed, total, seen, later.ahead)

    found = joined(*earlier, q, later)
    np.testing.assert_allclose(found, wanted, atol=2e-6)
    assert np.array_equal(found[80:], earlier[0][80:]), "text is as it was"
