"""Matmuls with integers of 8 and 4 bits equal numpy on every shape, group size and surrounding, and
have the same bits for a row alone and in any batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import Array

from pallas_kernels.choice import cpu_problem
from pallas_kernels.cpu.codes import (
    pack_codes,
    pack_scales,
    packed_codes_shape,
    scales_fit,
    unpack_codes,
    unpack_scales,
)
from pallas_kernels.cpu.matmul import Scales, matmul
from tests.marks import slow
from tests.pallas_kernels.cpu.surroundings import Surroundings

problem = cpu_problem()
pytestmark = pytest.mark.skipif(bool(problem), reason=problem or "runs")

FLOATS = ["bfloat16", "float32"]
DTYPES = [FLOATS[0], *slow(*FLOATS[1:])]
# rows, inputs, outputs, group: one row, partial panels, partial groups, one group (also of many
# tiles), many tiles.
SHAPES = [
    (13, 70, 33, 32),
    *slow(
        (1, 8, 5, 4),
        (40, 130, 48, 16),
        (2, 64, 96, 64),
        (12, 130, 70, 130),
        (40, 1100, 48, 2000),
        (40, 3300, 48, 4000),
        (210, 3300, 40, 128),
    ),
]


class Case:
    """A random weight of integers, declared and packed, with what it stands for."""

    def __init__(
        self, inputs: int, outputs: int, group: int, *, bits: int = 4, zeros: bool = False,
        dtype: str = "bfloat16", gated: bool = False, weights: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        draw = np.random.default_rng(inputs + outputs + group)
        groups = -(-inputs // group)
        low, high = (-128, 128) if bits == 8 else (0, 16)
        codes = draw.integers(low, high, (*weights, inputs, outputs))
        scales = draw.uniform(0.01, 0.1, (*weights, groups, outputs)).astype(np.float32)
        self.zeros = draw.integers(-8, 8, scales.shape).astype(np.float32) if zeros else None
        signed = codes - (8 if bits == 4 else 0)
        middle = 0 if self.zeros is None else np.repeat(self.zeros, group, -2)[..., :inputs, :]
        self.weight = (signed - middle) * np.repeat(scales, group, -2)[..., :inputs, :]
        self.codes = codes.astype(np.int8 if bits == 8 else np.uint8)
        if bits == 4:
            self.codes = self.codes[..., 0::2, :] | self.codes[..., 1::2, :] << 4
        self.given = scales
        self.packed, *packed_scales = jax.jit(
            lambda codes, *scales: (
                pack_codes(codes, inputs, dtype, gated),
                *(None if one is None else pack_scales(one, gated) for one in scales),
            )
        )(self.codes, scales, self.zeros)
        self.scales = Scales(*packed_scales, group, dtype, codes=f"int{bits}")

    def unpacked(self, inputs: int, outputs: int, gated: bool = False) -> tuple[Array, Array]:
        """The codes and scales as they were declared."""
        dtype = self.scales.dtype
        return jax.jit(
            lambda codes, scale: (
                unpack_codes(codes, inputs, outputs, dtype, gated=gated),
                unpack_scales(scale, outputs, gated),
            )
        )(self.packed, self.scales.scale)


def random(*shape: int, seed: int) -> Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def rounded(x: Any, dtype: str) -> np.ndarray:
    return np.asarray(x, np.float32).astype(jnp.dtype(dtype)).astype(np.float64)


def check(found: Any, expected: np.ndarray, inputs: int) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * inputs**0.5)


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(("rows", "inputs", "outputs", "group"), SHAPES)
def test_equals_numpy(
    dtype: str, bits: int, zeros: bool, rows: int, inputs: int, outputs: int, group: int
) -> None:
    case = Case(inputs, outputs, group, bits=bits, zeros=zeros, dtype=dtype)
    assert case.packed.shape == packed_codes_shape(inputs, outputs, bits, dtype)
    codes, scales = case.unpacked(inputs, outputs)
    np.testing.assert_array_equal(codes, case.codes)
    np.testing.assert_array_equal(scales, case.given)
    x = random(rows, inputs, seed=0)
    found = jax.jit(lambda x: matmul(x, case.packed, outputs, scales=case.scales))(x)
    check(found, rounded(x, dtype) @ case.weight, inputs)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 13])
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_code_is_exact(dtype: str, rows: int) -> None:
    codes = np.arange(-128, 128, dtype=np.int8).reshape(2, 128)

    @jax.jit
    def run(x: Array, codes: Array) -> Array:
        scales = Scales(pack_scales(jnp.ones((1, 128))), None, 2, dtype)
        return matmul(x, pack_codes(codes, 2, dtype), 128, scales=scales)

    found = run(np.eye(2, dtype=np.float32)[np.arange(rows) % 2], codes)
    np.testing.assert_array_equal(found, codes[np.arange(rows) % 2])


@pytest.mark.parametrize("zeros", [False, True])
def test_float16_scales_have_the_bits_of_float32(zeros: bool) -> None:
    """For few rows, a block and several of them; three panels, so that two of them are a pair."""
    case = Case(70, 90, 32, bits=8, zeros=zeros)
    halves = case.scales.scale.astype(jnp.float16)
    x = random(40, 70, seed=0)

    @jax.jit
    def run(x: Array, scale: Array) -> Array:
        return matmul(x, case.packed, 90, scales=case.scales._replace(scale=scale))

    for rows in (1, 3, 8, 40):
        found = run(x[:rows], halves)
        np.testing.assert_array_equal(found, run(x[:rows], halves.astype(jnp.float32)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("inner", [21, *slow(16, 80)])
def test_what_surrounds_it(dtype: str, bits: int, inner: int) -> None:
    case = Case(34, 2 * inner, 16, bits=bits, zeros=True, dtype=dtype, gated=True)
    codes, scales = case.unpacked(34, 2 * inner, gated=True)
    np.testing.assert_array_equal(codes, case.codes)
    np.testing.assert_array_equal(scales, case.given)
    outer = Surroundings(random, inner)
    found = outer.run(case.packed, case.scales)
    exact, weight = np.asarray(outer.x, np.float64), np.asarray(outer.norm.weight)
    normed = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-5) * weight
    expected = outer.around(rounded(normed, dtype) @ case.weight)
    # The norm's last bit may round a bfloat16 the other way.
    tolerance = 5e-2 if dtype == "bfloat16" else 1e-4
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("sizes", [[3, 0, 9, 1], *slow([40, 1, 0, 2], [0, 0, 0, 0])])
def test_each_group_of_rows_has_its_own_matrix(zeros: bool, sizes: list[int]) -> None:
    case = Case(34, 46, 16, zeros=zeros, weights=(4,))
    x = np.array(random(sum(sizes) + 3, 34, seed=0))
    x[sum(sizes) :] = np.nan
    options: dict[str, Any] = {"gate": "pairs", "activation": "silu"}
    by_group = jnp.asarray(sizes, jnp.int32)
    found = matmul(x, case.packed, 46, sizes=by_group, scales=case.scales, **options)
    np.testing.assert_array_equal(found[sum(sizes) :], 0)
    for group, (end, size) in enumerate(zip(np.cumsum(sizes), sizes, strict=True)):
        own = case.scales._replace(
            scale=case.scales.scale[group], zero=None if not zeros else case.scales.zero[group]
        )
        rows = x[end - size : end]
        alone = matmul(rows, case.packed[group], 46, scales=own, **options)
        np.testing.assert_array_equal(found[end - size : end], alone)


@pytest.mark.slow
@settings(max_examples=4, deadline=None)
@given(st.data())
def test_a_row_has_the_same_bits_in_any_batch(data: st.DataObject) -> None:
    inputs, outputs = 2 * data.draw(st.integers(1, 90)), data.draw(st.integers(1, 70))
    case = Case(
        inputs, outputs, data.draw(st.sampled_from([2, 16, 64, inputs])),
        bits=data.draw(st.sampled_from([4, 8])), zeros=data.draw(st.booleans()),
        dtype=data.draw(st.sampled_from(FLOATS)),
    )  # fmt: skip
    x = random(61, inputs, seed=0)
    order = np.asarray(data.draw(st.permutations(range(61)))[: data.draw(st.integers(1, 61))])
    whole = np.asarray(matmul(x, case.packed, outputs, scales=case.scales))
    part = np.asarray(matmul(x[order], case.packed, outputs, scales=case.scales))
    np.testing.assert_array_equal(part, whole[order])


def test_scales_that_a_step_would_have_two_of_are_refused() -> None:
    assert scales_fit(2, 64, "bfloat16") and scales_fit(3, 64, "float32")
    assert scales_fit(65, 65, "bfloat16") and not scales_fit(3, 64, "bfloat16")
    case = Case(64, 40, 3)
    with pytest.raises(jax.errors.JaxRuntimeError, match="must not have two scales"):
        matmul(random(2, 64, seed=0), case.packed, 40, scales=case.scales).block_until_ready()
