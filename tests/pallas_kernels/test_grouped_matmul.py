"""Grouped matmuls equal numpy: every height of tile, groups without rows, padding, odd sizes."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from pallas_kernels.grouped_matmul import combine_rows, multiply_tokens, sort_by_group
from tests.marks import slow
from tests.pallas_kernels.implementations import TRITON, XLA_AND_TRITON


@dataclass(frozen=True)
class Case:
    """Tokens, their choices, groups, and the sizes of the two matrices of each group."""

    tokens: int
    choices: int
    groups: int
    hidden: int = 48
    inner: int = 40
    dtype: str = "float32"


# One row per group on average and up to 200, which are the four heights of tiles.
CASES = [
    Case(5, 2, 4, dtype="bfloat16"),
    Case(37, 3, 5, hidden=136, inner=72),
]
MORE = [
    Case(100, 2, 4, dtype="bfloat16"),
    Case(1, 8, 128),
    Case(200, 2, 2, dtype="bfloat16"),
    Case(64, 8, 128),
    Case(3, 1, 1),
    Case(300, 8, 12, hidden=200, inner=96, dtype="bfloat16"),
    Case(16, 6, 160, dtype="float16"),
    Case(400, 1, 2, hidden=64, inner=160),
]


def chosen_groups(case: Case, padding: int = 0) -> np.ndarray:
    """Groups of each token, most of them low ones, so that some groups have no rows."""
    rng = np.random.default_rng(case.tokens)
    high = rng.random(case.groups) ** 3
    found = np.argsort(-rng.random((case.tokens, case.groups)) * high, axis=1)[:, : case.choices]
    found = found.astype(np.int32)
    found[rng.permutation(case.tokens)[:padding]] = -1
    return found


def arrays(case: Case) -> tuple[Array, Array, Array, Array]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(case.tokens, case.hidden))
    first = rng.normal(size=(case.groups, case.hidden, case.inner * 2)) / np.sqrt(case.hidden)
    second = rng.normal(size=(case.groups, case.inner, case.hidden)) / np.sqrt(case.inner)
    scales = rng.random((case.tokens, case.choices))
    return (
        *(jnp.asarray(x, case.dtype) for x in (x, first, second)),
        jnp.asarray(scales, jnp.float32),
    )


def plain(case: Case, groups: np.ndarray, activation: str) -> np.ndarray:
    """All choices of all tokens, one after the other, in float64."""
    x, first, second, scales = (np.asarray(x, np.float64) for x in arrays(case))
    out = np.zeros((case.tokens, case.hidden))
    for token, choice in np.argwhere(groups >= 0):
        group = groups[token, choice]
        both = x[token] @ first[group]
        gate, up = both[::2], both[1::2]
        if activation == "silu":
            gate = gate / (1 + np.exp(-gate))
        else:
            gate = gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) / 2
        out[token] += gate * up @ second[group] * scales[token, choice]
    return out


@pytest.mark.parametrize("implementation", XLA_AND_TRITON)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("padding", [0, *slow(3)])
@pytest.mark.parametrize("case", [*CASES, *slow(*MORE)])
def test_two_matmuls_equal_numpy(
    case: Case, padding: int, activation: str, implementation: str
) -> None:
    if activation == "gelu_tanh" and padding:
        pytest.skip("padding does not depend on the activation")
    chosen = chosen_groups(case, min(padding, case.tokens - 1))
    check(case, chosen, activation, implementation)


@pytest.mark.parametrize("implementation", [TRITON])
def test_one_group_has_all_rows(implementation: str) -> None:
    """Several bands of tiles of one group, the last of them smaller, and of columns."""
    case = Case(300, 1, 10, hidden=24, inner=72)
    check(case, np.full((300, 1), 3, np.int32), "silu", implementation)


def check(case: Case, chosen: np.ndarray, activation: str, implementation: str) -> None:
    x, first, second, scales = arrays(case)

    @jax.jit
    def both(groups: Array, x: Array, first: Array, second: Array, scales: Array) -> Array:
        rows = sort_by_group(groups, case.groups, implementation=implementation)
        inside = multiply_tokens(
            x, first, rows, activation=activation, implementation=implementation
        )
        return combine_rows(inside, second, rows, scales, implementation=implementation)

    found = both(jnp.asarray(chosen).reshape(-1), x, first, second, scales)
    expected = plain(case, chosen, activation)
    assert found.dtype == jnp.float32
    tolerance = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3}[case.dtype]
    scale = np.abs(expected).max()
    np.testing.assert_allclose(np.asarray(found), expected, atol=tolerance * scale)
    assert not np.asarray(found)[(chosen < 0).all(axis=1)].any()


@pytest.mark.parametrize("implementation", XLA_AND_TRITON)
def test_without_activation_rows_are_products(implementation: str) -> None:
    case = Case(9, 2, 3)
    chosen = chosen_groups(case, 1)
    x, weight, _, _ = arrays(case)
    rows = sort_by_group(jnp.asarray(chosen).reshape(-1), 3, implementation=implementation)
    found = np.asarray(multiply_tokens(x, weight, rows, implementation=implementation))
    assert found.shape == (18, 80)
    for place in range(16):
        token, choice = divmod(int(rows.order[place]), 2)
        expected = np.asarray(x)[token] @ np.asarray(weight)[chosen[token, choice]]
        np.testing.assert_allclose(found[place], expected, atol=1e-5)


@pytest.mark.parametrize("implementation", XLA_AND_TRITON)
@pytest.mark.parametrize(
    ("rows", "groups"), [(1, 1), (8, 128), (63, 5), (200, 7), *slow((5000, 3), (20_000, 512))]
)
def test_sorting_is_stable(rows: int, groups: int, implementation: str) -> None:
    """Rows of one program and of several, of one part and of several; some of no group."""
    given = np.random.default_rng(rows).integers(-1, groups + 1, rows).astype(np.int32)
    found = sort_by_group(jnp.asarray(given), groups, implementation=implementation)
    known = np.where((given < 0) | (given >= groups), groups, given)
    np.testing.assert_array_equal(np.asarray(found.order), np.argsort(known, kind="stable"))
    np.testing.assert_array_equal(
        np.asarray(found.sizes), np.bincount(known, minlength=groups + 1)[:groups]
    )


@pytest.mark.parametrize("implementation", [TRITON])
@pytest.mark.parametrize("sizes", [[0, 0, 40], [1, 1, 1], [16, 17, 0], [33, 0, 15]])
def test_the_map_has_every_tile_once(sizes: list[int], implementation: str) -> None:
    given = np.repeat(np.arange(3, dtype=np.int32), sizes)
    rows = np.random.default_rng(0).permutation(np.concatenate([given, [-1, 3]])).astype(np.int32)
    found = sort_by_group(jnp.asarray(rows), 3, implementation=implementation)
    assert found.tiles is not None
    height = 16
    expected, start, first = [], 0, 0
    for group, size in enumerate([*sizes, 2]):
        tiles = -(-size // height)
        expected += [[group, start, start + size, first]] * tiles
        start, first = start + size, first + tiles
    entries = np.asarray(found.tiles)
    np.testing.assert_array_equal(entries[: len(expected)], expected)
    assert (entries[len(expected) :, 0] == -1).all()
