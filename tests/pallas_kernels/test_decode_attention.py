"""Decode attention equals numpy, and nothing outside a row's own tokens reaches the result."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.decode_attention import decode_attention
from tests.marks import slow
from tests.pallas_kernels.implementations import IMPLEMENTATIONS
from tests.pallas_kernels.paged_cases import Case, attend, random_case

LENGTHS = [1, 3, 4, 5, 17, 300, 256, 0, 0]  # the last two are padding


def run(case: Case, q: np.ndarray, lengths: list[int], **options: object) -> np.ndarray:
    return np.asarray(
        decode_attention(
            jnp.asarray(q), jnp.asarray(case.cache), case.layer, jnp.asarray(case.tables),
            jnp.asarray(case.starts), jnp.asarray(lengths, jnp.int32),
            head_dim=case.head_dim, window=case.window, **options,
        )
    )  # fmt: skip


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "window"),
    [
        (4, 2, 8, None),
        (6, 1, 4, 7),
        *slow((8, 2, 12, 1), (2, 2, 16, None), (4, 2, 8, 16), (3, 3, 8, 500)),
    ],
)
def test_equals_numpy(
    heads: int, kv_heads: int, head_dim: int, window: int | None, implementation: str
) -> None:
    case = random_case(LENGTHS, kv_heads=kv_heads, head_dim=head_dim, window=window)
    q = np.random.default_rng(1).normal(size=(len(LENGTHS), heads, head_dim)).astype(np.float32)
    result = run(case, q, LENGTHS, implementation=implementation)
    for row, length in enumerate(LENGTHS):
        expected = (
            attend(q[row], case.keys[row], case.values[row], length - 1, window)
            if length
            else np.zeros((heads, head_dim))
        )
        np.testing.assert_allclose(result[row], expected, atol=2e-5)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("window", [7, *slow(None)])
@pytest.mark.parametrize(("scale", "soft_cap"), [(2.0, 3.0), *slow((0.9, None), (None, 0.5))])
def test_scale_and_soft_cap(
    scale: float | None, soft_cap: float | None, window: int, implementation: str
) -> None:
    case = random_case(LENGTHS, window=window)
    q = np.random.default_rng(4).normal(size=(len(LENGTHS), 4, 8)).astype(np.float32)
    options = {"scale": scale, "soft_cap": soft_cap}
    result = run(case, q, LENGTHS, implementation=implementation, **options)
    for row, length in enumerate(LENGTHS[:-2]):
        expected = attend(q[row], case.keys[row], case.values[row], length - 1, window, **options)
        np.testing.assert_allclose(result[row], expected, atol=2e-5)
    assert (result[-2:] == 0).all()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("rows", [5, *slow(1, 2, 8)])
def test_any_number_of_rows(rows: int, implementation: str) -> None:
    lengths = list(range(2, 2 + rows))
    case = random_case(lengths)
    q = np.random.default_rng(2).normal(size=(rows, 4, 8)).astype(np.float32)
    result = run(case, q, lengths, implementation=implementation)
    for row, length in enumerate(lengths):
        expected = attend(q[row], case.keys[row], case.values[row], length - 1, None)
        np.testing.assert_allclose(result[row], expected, atol=2e-5)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_padding_rows_are_zero_whatever_their_tables_say(implementation: str) -> None:
    case = random_case([6, 0])
    case.tables[1] = 0
    q = np.ones((2, 4, 8), np.float32)
    result = run(case, q, [6, 0], implementation=implementation)
    assert np.isfinite(result[0]).all()
    assert (result[1] == 0).all()


def test_an_unknown_implementation_is_named() -> None:
    case = random_case([3])
    q = np.ones((1, 4, 8), np.float32)
    with pytest.raises(ValueError, match=r"decode_attention.*'cuda'.*Available: .*xla"):
        run(case, q, [3], implementation="cuda")
