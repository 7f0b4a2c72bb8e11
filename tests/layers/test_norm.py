"""Norms against torch, over one and over two axes."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jengine.layers.norm import layer_norm, rms_norm

torch = pytest.importorskip("torch")
EPS = 1e-5


def random(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(24,), (3, 8)])
def test_rms_norm(shape: tuple[int, ...]) -> None:
    x, weight = random(5, *shape, seed=0), random(*shape, seed=1)
    expected = torch.nn.functional.rms_norm(
        torch.tensor(x), shape, torch.tensor(weight), eps=EPS
    ).numpy()
    found = rms_norm(jnp.asarray(x), jnp.asarray(weight), EPS)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(24,), (3, 8)])
def test_layer_norm(shape: tuple[int, ...]) -> None:
    x, weight, bias = random(5, *shape, seed=0), random(*shape, seed=1), random(*shape, seed=2)
    expected = torch.nn.functional.layer_norm(
        torch.tensor(x), shape, torch.tensor(weight), torch.tensor(bias), eps=EPS
    ).numpy()
    found = layer_norm(jnp.asarray(x), jnp.asarray(weight), jnp.asarray(bias), EPS)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_norms_compute_in_float32() -> None:
    x = jnp.full((2, 8), 300.0, jnp.bfloat16)  # its square is beyond float16, its sum coarse here
    found = rms_norm(x, jnp.ones(8, jnp.bfloat16), EPS)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, np.ones((2, 8)), rtol=1e-6)
