"""The selective scan, in decode rows and tiles, against a plain loop in float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jengine.config import MambaConfig
from jengine.layers.mamba import SelectiveRule
from jengine.layers.recurrent import RecurrentInputs, dense_recurrent

CHANNELS, SIZE, RANK, WIDTH, LENGTH = 6, 5, 3, 4, 70
EPS = 1e-3


def softplus(x: np.ndarray) -> np.ndarray:
    return np.log1p(np.exp(x))


def plainly(tokens: np.ndarray, rule: dict[str, np.ndarray], *, normed: bool) -> np.ndarray:
    """One sequence, token by token."""
    state, out = np.zeros((CHANNELS, SIZE)), []
    padded = np.concatenate([np.zeros((WIDTH - 1, CHANNELS)), tokens])
    for at in range(len(tokens)):
        x = (padded[at : at + WIDTH] * rule["kernel"]).sum(0) + rule["bias"]
        x = x / (1 + np.exp(-x))
        made = x @ rule["select"]
        short, b, c = np.split(made, [RANK, RANK + SIZE])
        if normed:
            short, b, c = (one / np.sqrt((one**2).mean() + EPS) for one in (short, b, c))
        dt = softplus(short @ rule["dt_weight"] + rule["dt_bias"])
        state = np.exp(-dt[:, None] * np.exp(rule["rate_logs"])) * state
        state = state + (dt * x)[:, None] * b
        out.append(state @ c + rule["skip"] * x)
    return np.stack(out)


@pytest.mark.parametrize("normed", [False, True])
def test_equals_a_plain_loop(normed: bool) -> None:
    rng = np.random.default_rng(0)
    shapes = {
        "kernel": (WIDTH, CHANNELS), "bias": (CHANNELS,), "select": (CHANNELS, RANK + 2 * SIZE),
        "dt_weight": (RANK, CHANNELS), "dt_bias": (CHANNELS,), "rate_logs": (CHANNELS, SIZE),
        "skip": (CHANNELS,),
    }  # fmt: skip
    own = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    tokens = rng.normal(size=(2, LENGTH, CHANNELS))
    ones = jnp.ones((SIZE,))
    norms = (jnp.ones((RANK,)), ones, ones) if normed else None
    rule = SelectiveRule(**{name: jnp.asarray(x) for name, x in own.items()}, norms=norms, eps=EPS)
    states = MambaConfig(CHANNELS, SIZE, RANK, WIDTH).cache.states
    run = jax.jit(lambda given: dense_recurrent(RecurrentInputs(rule, given, states)))
    found = run(jnp.asarray(tokens, jnp.float32))
    expected = np.stack([plainly(one, own, normed=normed) for one in tokens])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
