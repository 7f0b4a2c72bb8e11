"""Recurrences by kernels equal numpy, and change no state but those of rows with a token."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from jengine.layers.recurrent import NOWHERE
from pallas_kernels.recurrent_decode import delta_step, state_space_step
from tests.marks import slow
from tests.pallas_kernels.implementations import TRITON

UNITS, LAYER, EPS = 9, 1, 1e-6
# In place, from a snapshot to another unit, padding (twice the same unit), from nothing, in place.
READS = np.array([3, 5, 0, 0, -1, 2], np.int32)
WRITES = np.array([3, 6, NOWHERE, NOWHERE, 1, 2], np.int32)
ROWS = len(READS)
RUNS = WRITES < UNITS


class Numbers(NamedTuple):
    """Random arrays, of which some are rounded as steps have them."""

    rng: np.random.Generator
    dtype: str

    def of(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return (scale * self.rng.normal(size=shape)).astype(np.float32)

    def given(self, *shape: int) -> tuple[np.ndarray, jnp.ndarray]:
        """The numbers, and as the kernel gets them."""
        array = jnp.asarray(self.of(*shape)).astype(self.dtype)
        return np.asarray(array, np.float64), array


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x.astype(np.float64), 0.0)


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.sum(x * x, -1, keepdims=True) + EPS)


def before(states: np.ndarray) -> np.ndarray:
    """The states that rows go on from."""
    fresh = READS.reshape(-1, *[1] * (states.ndim - 2)) < 0
    return np.where(fresh, 0.0, states[LAYER, READS].astype(np.float64))


def check(found: tuple, out: np.ndarray, after: np.ndarray, states: np.ndarray) -> None:
    """The results and states of rows with a token; zeros of others, and no other state changed."""
    results, new = (np.asarray(x) for x in found)
    np.testing.assert_allclose(results[RUNS], out[RUNS], rtol=1e-4, atol=2e-6)
    assert (results[~RUNS] == 0).all()
    expected = states.copy()
    expected[LAYER, WRITES[RUNS]] = after[RUNS]
    np.testing.assert_allclose(new, expected, rtol=1e-4, atol=2e-6)
    untouched = np.ones(states.shape[:2], bool)
    untouched[LAYER, WRITES[RUNS]] = False
    np.testing.assert_array_equal(new[untouched], states[untouched])


@pytest.mark.parametrize("implementation", [TRITON])
@pytest.mark.parametrize(
    ("heads", "share", "key", "value", "dtype"),
    [(2, 2, 12, 40, "bfloat16"), *slow((1, 1, 128, 64, "float32"), (3, 4, 16, 8, "float16"))],
)
def test_the_delta_rule(
    heads: int, share: int, key: int, value: int, dtype: str, implementation: str
) -> None:
    numbers = Numbers(np.random.default_rng(key), dtype)
    states = numbers.of(3, UNITS, heads, share, key, value)
    qkv, given_qkv = numbers.given(ROWS, heads, 2 * key + share * value)
    (dt, given_dt), (beta, given_beta) = (numbers.given(ROWS, heads, share) for _ in range(2))
    (logs, given_logs), (bias, given_bias) = (numbers.given(heads, share) for _ in range(2))
    found = delta_step(
        jnp.asarray(states), LAYER, jnp.asarray(READS), jnp.asarray(WRITES), given_qkv, given_dt,
        given_beta, given_logs, given_bias, eps=EPS, implementation=implementation,
    )  # fmt: skip
    q, k, v = np.split(qkv, [key, 2 * key], axis=-1)
    q, k = unit(q) * key**-0.5, unit(k)
    v = v.reshape(ROWS, heads, share, value)
    decay = np.exp(-np.exp(logs) * softplus(dt + bias))
    maps = before(states) * decay[..., None, None]
    change = (v - np.einsum("rhk,rhskv->rhsv", k, maps)) / (1 + np.exp(-beta))[..., None]
    maps = maps + np.einsum("rhk,rhsv->rhskv", k, change)
    check(found, np.einsum("rhk,rhskv->rhsv", q, maps), maps, states)


@pytest.mark.parametrize("implementation", [TRITON])
@pytest.mark.parametrize(
    ("heads", "groups", "dim", "size", "limits", "dtype"),
    [
        (4, 2, 40, 12, (0.1, 0.9), "bfloat16"),
        *slow((2, 1, 64, 128, (0.0, np.inf), "float32"), (6, 3, 8, 16, (0.0, np.inf), "float16")),
    ],
)
def test_the_state_space_recurrence(
    heads: int, groups: int, dim: int, size: int, limits: tuple[float, float], dtype: str,
    implementation: str,
) -> None:  # fmt: skip
    numbers = Numbers(np.random.default_rng(size), dtype)
    states = numbers.of(3, UNITS, heads, dim, size)
    x, given_x = numbers.given(ROWS, heads, dim)
    keys, given_keys = numbers.given(ROWS, 2, groups, size)
    dt, given_dt = numbers.given(ROWS, heads)
    (logs, given_logs), (bias, given_bias) = (numbers.given(heads) for _ in range(2))
    # Not in order, as on a device that has some of the heads.
    group = np.arange(heads, dtype=np.int32)[::-1] * groups // heads
    found = state_space_step(
        jnp.asarray(states), LAYER, jnp.asarray(READS), jnp.asarray(WRITES), given_x, given_keys,
        jnp.asarray(group), given_dt, given_logs, given_bias, limits=limits,
        implementation=implementation,
    )  # fmt: skip
    sizes = np.clip(softplus(dt + bias), *limits)
    decay = np.exp(-np.exp(logs) * sizes)
    b, c = keys[:, 0, group], keys[:, 1, group]
    after = before(states) * decay[..., None, None]
    after = after + np.einsum("rhd,rhn->rhdn", x * sizes[..., None], b)
    check(found, np.einsum("rhdn,rhn->rhd", after, c), after, states)


@pytest.mark.parametrize("implementation", [TRITON])
def test_steps_of_low_sizes_are_not_lost(implementation: str) -> None:
    """softplus(x) is exp(x) where 1 + exp(x) rounds to 1, and near there."""
    dt = np.array([[-30.0], [-17.0], [-15.5], [-8.0], [0.0], [40.0]], np.float32)
    zero, one = jnp.zeros(1), jnp.ones((ROWS, 1, 1))
    out, _ = state_space_step(
        jnp.zeros((1, UNITS, 1, 1, 1)), 0, jnp.full(ROWS, -1), jnp.arange(ROWS), one,
        jnp.ones((ROWS, 2, 1, 1)), jnp.zeros(1, jnp.int32), jnp.asarray(dt), zero, zero,
        limits=(0.0, np.inf), implementation=implementation,
    )  # fmt: skip
    np.testing.assert_allclose(out[..., 0], softplus(dt), rtol=2e-6)
