"""Matrices of low rank by slot: every implementation gives what numpy gives, row by row."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.low_rank import COLUMNS, inputs_first, multiply_low_rank, slot_order
from tests.pallas_kernels.implementations import CPU, TRITON

ROWS, INPUTS, OUTPUTS, RANK, SLOTS = 13, 48, 70, 6, 3
IMPLEMENTATIONS = ["xla", CPU, TRITON]


def drawn(dtype: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(ROWS, INPUTS)).astype(np.float32)
    down = draw.normal(size=(SLOTS, RANK, INPUTS)).astype(dtype)
    up = draw.normal(size=(SLOTS, RANK, OUTPUTS)).astype(dtype)
    return x, down, up, draw.integers(0, SLOTS + 1, ROWS).astype(np.int32)


def expected(x: np.ndarray, down: np.ndarray, up: np.ndarray, slots: np.ndarray) -> np.ndarray:
    found = np.zeros((ROWS, OUTPUTS))
    for row, slot in enumerate(slots):
        if slot:
            first, second = (np.asarray(one[slot - 1], np.float64) for one in (down, up))
            found[row] = first @ x[row].astype(np.float64) @ second
    return found


def run(implementation: str, x: Any, down: Any, up: Any, slots: Any) -> np.ndarray:
    given = jnp.asarray(down)
    if inputs_first(implementation):
        given = given.swapaxes(1, 2)
    order = slot_order(jnp.asarray(slots), SLOTS, implementation=implementation)
    made = multiply_low_rank(
        jnp.asarray(x), given, jnp.asarray(up), order, implementation=implementation
    )
    return np.asarray(made)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 1e-4), (jnp.bfloat16, 0.35)])
def test_each_row_meets_the_matrices_of_its_slot(
    implementation: str, dtype: Any, error: float
) -> None:
    x, down, up, slots = drawn(dtype)
    made = run(implementation, x, down, up, slots)
    np.testing.assert_allclose(made, expected(x, down, up, slots), atol=error)
    assert not made[slots == 0].any()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_what_is_no_number_in_one_slot_stays_there(implementation: str) -> None:
    x, down, up, slots = drawn(np.float32)
    down[0], up[0] = np.nan, 0.0
    made = run(implementation, x, down, up, slots)
    assert np.isnan(made[slots == 1]).all()
    assert np.isfinite(made[slots != 1]).all()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_ranks_outside_of_a_range_are_zero_and_a_base_is_added(implementation: str) -> None:
    """As of two modules that share a weight: the first ranks make the first columns."""
    x, down, _, slots = drawn(np.float32)
    outputs = COLUMNS + 20
    up = np.random.default_rng(1).normal(size=(SLOTS, RANK, outputs)).astype(np.float32)
    up[:, 2:, :COLUMNS] = 0.0
    up[:, :2, COLUMNS:] = 0.0
    base = np.random.default_rng(2).normal(size=(ROWS, outputs)).astype(np.float32)
    given = jnp.asarray(down)
    order = slot_order(jnp.asarray(slots), SLOTS, implementation=implementation)
    made = multiply_low_rank(
        jnp.asarray(x), given.swapaxes(1, 2) if inputs_first(implementation) else given,
        jnp.asarray(up), order, ranges=jnp.asarray([[0, 2], [2, RANK]], jnp.int32),
        base=jnp.asarray(base), implementation=implementation,
    )  # fmt: skip
    wanted = base.astype(np.float64)
    for row, slot in enumerate(slots):
        if slot:
            wanted[row] += down[slot - 1].astype(np.float64) @ x[row] @ up[slot - 1]
    np.testing.assert_allclose(np.asarray(made), wanted, atol=1e-4)


@pytest.mark.parametrize("implementation", [CPU])
def test_with_the_cpus_kernels_a_row_has_the_same_bits_in_any_batch(implementation: str) -> None:
    x, down, up, slots = drawn(jnp.bfloat16)
    made = run(implementation, x, down, up, slots)
    for row in range(ROWS):
        alone = run(implementation, x[row : row + 1], down, up, slots[row : row + 1])
        np.testing.assert_array_equal(alone[0], made[row])
