"""Matmuls with weights of few bits equal numpy: every kind of code, zeros, a few rows and many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.grouped_matmul import combine_rows, multiply_tokens, sort_by_group
from pallas_kernels.quantized_matmul import CodedWeight, multiply_coded, multiply_float8
from pallas_kernels.quantized_matmul.coded import FOUR_BITS, FP4, packed, part_for, unpacked
from pallas_kernels.quantized_matmul.triton import split_for, tile_rows_for
from tests.marks import slow
from tests.pallas_kernels.implementations import XLA_AND_TRITON

FP8 = jnp.float8_e4m3fn


@dataclass(frozen=True)
class Case:
    """The codes of a weight, and the sizes of a matmul with it."""

    kind: Any
    group: int
    zeros: bool = False
    rows: int = 5
    inputs: int = 256
    columns: int = 80


CASES = [
    Case("int4", 64, zeros=True, rows=40),
    Case("fp4", 32, inputs=192),
    Case("int8", 32, rows=20),
    Case("fp8", 128, rows=130),
]
MORE = [
    Case("int4", 128),
    Case("int8", 64, zeros=True),
    Case("int4", 32, rows=3),
    Case("int4", 4096, inputs=4096, columns=24),
    Case("int8", 128, rows=300, columns=200),
    Case("int4", 128, zeros=True, inputs=8192, columns=70),
]


def random_weight(case: Case, *matrices: int) -> tuple[CodedWeight, np.ndarray]:
    """A weight, and the numbers [..., inputs, columns] that it stands for."""
    rng = np.random.default_rng(case.inputs + case.group)
    shape = (*matrices, case.columns, case.inputs)
    scales = rng.uniform(0.5, 1.5, (*matrices, case.inputs // case.group, case.columns))
    zeros = None
    if case.kind in FOUR_BITS:
        codes = rng.integers(0, 16, shape).astype(np.uint8)
        numbers = codes.astype(np.float64)
    else:
        codes = rng.integers(-128, 128, shape).astype(np.int8)
        numbers = codes.astype(np.float64)
    middle: Any = 8.0 if case.kind == "int4" else 0.0
    if case.zeros:
        zeros = rng.integers(0, 16 if case.kind == "int4" else 256, scales.shape).astype(np.uint8)
        middle = np.repeat(zeros - (128.0 if case.kind == "int8" else 0.0), case.group, -2)
        middle = np.swapaxes(middle, -1, -2)
    if case.kind == "fp4":
        numbers = np.asarray((*FP4, *(-value for value in FP4)))[codes]
        stored = rng.integers(118, 125, scales.shape).astype(np.uint8)
        scales = 2.0 ** (stored.astype(np.float64) - 127)
    elif case.kind == "fp8":
        codes = np.asarray(jnp.asarray(rng.normal(size=shape) * 50).astype(FP8))
        numbers = codes.astype(np.float64)
    stored = stored if case.kind == "fp4" else scales.astype(np.float32)
    wide = np.swapaxes(np.repeat(stored.astype(np.float64), case.group, -2), -1, -2)
    wide = 2.0 ** (wide - 127) if case.kind == "fp4" else wide
    numbers = np.swapaxes((numbers - middle) * wide, -1, -2)
    part = part_for(case.kind, case.inputs, case.group)
    assert part is not None
    kept = jnp.asarray(codes)
    weight = CodedWeight(
        packed(kept, part) if case.kind in FOUR_BITS else kept, jnp.asarray(stored), case.kind,
        case.group, part, jnp.dtype("bfloat16"), None if zeros is None else jnp.asarray(zeros),
    )  # fmt: skip
    return weight, numbers


def random_rows(rows: int, inputs: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(rows).normal(size=(rows, inputs)), jnp.bfloat16)


def as_bfloat16(numbers: np.ndarray) -> np.ndarray:
    return np.asarray(jnp.asarray(numbers, jnp.float32).astype(jnp.bfloat16), np.float64)


@pytest.mark.parametrize("implementation", XLA_AND_TRITON)
@pytest.mark.parametrize("case", [*CASES, *slow(*MORE)])
def test_codes_multiply_as_the_numbers_they_stand_for(case: Case, implementation: str) -> None:
    weight, numbers = random_weight(case)
    assert weight.shape == numbers.shape
    np.testing.assert_allclose(np.asarray(weight.exact()), numbers, rtol=1e-6)
    x = random_rows(case.rows, case.inputs)
    found = multiply_coded(x, weight, implementation=implementation)
    assert found.dtype == jnp.float32
    # The reference of every backend rounds dequantized weights too.
    expected = np.asarray(x, np.float64) @ as_bfloat16(numbers)
    np.testing.assert_allclose(np.asarray(found), expected, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("implementation", XLA_AND_TRITON)
@pytest.mark.parametrize("rows", [3, *slow(70)])
def test_float8_by_float8_with_scales_of_both(rows: int, implementation: str) -> None:
    case = Case("fp8", 128, inputs=512)
    weight, numbers = random_weight(case)
    rng = np.random.default_rng(rows)
    x = jnp.asarray(rng.normal(size=(rows, 512)) * 100).astype(FP8)
    scales = rng.uniform(0.1, 1, (rows, 4)).astype(np.float32)
    found = multiply_float8(x, jnp.asarray(scales), weight, implementation=implementation)
    expected = (np.asarray(x, np.float64) * np.repeat(scales, 128, 1)) @ numbers
    # Tensor cores of capability 9.0 add FP8 products in 14 bits within a group.
    error = 1e-6 if jax.default_backend() == "cpu" else 3e-4
    np.testing.assert_allclose(np.asarray(found), expected, atol=error * np.abs(expected).max())
    narrow = multiply_float8(
        x, jnp.asarray(scales), weight, dtype="bfloat16", implementation=implementation
    )
    assert narrow.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(narrow), np.asarray(found.astype(jnp.bfloat16)))


@pytest.mark.parametrize("implementation", XLA_AND_TRITON)
@pytest.mark.parametrize(
    "case", [Case("fp4", 32, inputs=64, columns=48), *slow(Case("int4", 64, True, 9), CASES[-1])]
)
def test_experts_of_few_bits(case: Case, implementation: str) -> None:
    """Each row by the matrix of its group, gated; padding and groups without rows among them."""
    groups = np.asarray([[2, 0], [-1, -1], [2, 2], [0, 3], [3, 2]], np.int32)
    weight, numbers = random_weight(case, 4)
    x = random_rows(5, case.inputs)
    rows = sort_by_group(jnp.asarray(groups).reshape(-1), 4, implementation=implementation)
    inside = multiply_tokens(x, weight, rows, activation="silu", implementation=implementation)
    assert inside.shape == (10, case.columns // 2) and inside.dtype == jnp.bfloat16
    plain = multiply_tokens(x, weight, rows, implementation=implementation)
    for place in range(8):
        token, choice = divmod(int(rows.order[place]), 2)
        made = np.asarray(x, np.float64)[token] @ as_bfloat16(numbers[groups[token, choice]])
        scale = np.abs(made).max()
        np.testing.assert_allclose(np.asarray(plain, np.float64)[place], made, atol=5e-3 * scale)
        gated = made[::2] / (1 + np.exp(-made[::2])) * made[1::2]
        scale = np.abs(gated).max()
        np.testing.assert_allclose(np.asarray(inside, np.float64)[place], gated, atol=5e-3 * scale)
    # Back to tokens: the weighted sum of each token's rows.
    y = random_rows(10, case.inputs)
    scales = np.random.default_rng(1).random((5, 2)).astype(np.float32)
    found = combine_rows(y, weight, rows, jnp.asarray(scales), implementation=implementation)
    expected = np.zeros((5, case.columns))
    for place in range(8):
        token, choice = divmod(int(rows.order[place]), 2)
        made = np.asarray(y, np.float64)[place] @ as_bfloat16(numbers[groups[token, choice]])
        expected[token] += scales[token, choice] * made
    np.testing.assert_allclose(np.asarray(found), expected, atol=1e-2 * np.abs(expected).max())


def test_packing_is_undone_by_unpacking() -> None:
    codes = np.random.default_rng(0).integers(0, 16, (3, 256)).astype(np.uint8)
    stored = packed(jnp.asarray(codes), 64)
    assert stored.shape == (3, 128)
    np.testing.assert_array_equal(np.asarray(stored)[:, 5], codes[:, 5] | codes[:, 69] << 4)
    np.testing.assert_array_equal(np.asarray(unpacked(stored, 64)), codes)


@pytest.mark.parametrize(
    ("kind", "inputs", "group", "part"),
    [
        ("int4", 4096, 128, 64),
        ("int4", 4096, 4096, 64),
        ("fp4", 2880, 32, 32),
        ("int8", 4096, 32, 32),
        ("int4", 96, 32, 16),
        ("int4", 80, 80, None),  # no whole blocks
        ("int8", 4096, 16, 16),
        ("int8", 4096, 8, None),  # smaller than the least that tensor cores take
        ("int4", 4096, 96, 32),
    ],
)
def test_how_many_inputs_are_multiplied_at_once(
    kind: Any, inputs: int, group: int, part: int | None
) -> None:
    assert part_for(kind, inputs, group) == part


def test_few_rows_split_the_inputs_among_programs() -> None:
    """Until there are programs enough for the device, and never below a few blocks for each."""
    assert [tile_rows_for(rows) for rows in (1, 16, 17, 64, 100, 4000)] == [
        16,
        16,
        32,
        64,
        128,
        128,
    ]
    assert split_for(8, 4096, 16, blocks=32) == 8
    assert split_for(8, 4096, 16, blocks=8) == 2
    assert split_for(8, 60_000, 16, blocks=32) == 1
    assert split_for(2048, 1024, 128, blocks=32) == 1
