"""Tables of biases by distance: decodes and prefill chunks equal numpy in float64."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.mixed_attention import mixed_attention
from tests.pallas_kernels.paged_cases import random_case

LENGTHS = [5, 40, 7]
DECODED = [4, 39, -1]
CHUNK = [2, 3, 4, 5, 6, -1]
HEADS, DIM, DISTANCES = 4, 8, 6  # shorter than the longest distance


@pytest.mark.parametrize("kv_heads", [2, 4])
@pytest.mark.parametrize("implementation", [None, "cpu", "triton"])
def test_every_implementation_adds_biases(implementation: str | None, kv_heads: int) -> None:
    """Kernels that have none leave it to XLA: the table is never dropped."""
    case = random_case(LENGTHS, kv_heads=kv_heads, head_dim=DIM)
    rng = np.random.default_rng(8)
    positions = [*DECODED, *CHUNK]
    q = rng.normal(size=(len(positions), HEADS, DIM)).astype(np.float32)
    biases = rng.normal(size=(HEADS, DISTANCES)).astype(np.float32) * 2
    rows = [0, 1, 0, 2]
    found = mixed_attention(
        jnp.asarray(q), jnp.asarray(case.cache), case.layer, jnp.asarray(case.tables[rows]),
        jnp.asarray(case.starts[rows]), jnp.asarray(positions, jnp.int32), rows=len(DECODED),
        head_dim=DIM, scale=1.0, biases=jnp.asarray(biases), implementation=implementation,
    )  # fmt: skip
    owners = [0, 1, 0, *[2] * len(CHUNK)]
    expected = np.stack([
        biased(q[token], case.keys[row], case.values[row], position, biases)
        for token, (row, position) in enumerate(zip(owners, positions, strict=True))
    ])  # fmt: skip
    np.testing.assert_allclose(found, expected, atol=2e-5)


def biased(
    query: np.ndarray, keys: np.ndarray, values: np.ndarray, position: int, biases: np.ndarray
) -> np.ndarray:
    """One query [heads, dim] at a position; zeros for padding."""
    if position < 0:
        return np.zeros_like(query)
    heads = np.arange(HEADS) // (HEADS // keys.shape[1])
    k, v = (one[: position + 1, heads].astype(np.float64) for one in (keys, values))
    distance = np.minimum(position - np.arange(position + 1), DISTANCES - 1)
    scores = np.einsum("hd,shd->hs", query, k) + biases[:, distance]
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return np.einsum("hs,shd->hd", weights, v)
