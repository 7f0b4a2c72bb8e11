"""Rows rounded to int8 meet int8 and int4 weights with the bits of XLA, alone and in any batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jengine.quantization.quantized import QuantizedWeights
from jengine.quantization.scheme import WeightShape
from jengine.weight_formats import WeightFormat
from pallas_kernels.choice import cpu_problem
from pallas_kernels.cpu import codes
from pallas_kernels.cpu import matmul as matmuls
from pallas_kernels.cpu.codes import packed_codes_shape
from pallas_kernels.cpu.matmul import Scales
from tests.compiled import compiled
from tests.marks import slow
from tests.pallas_kernels.cpu.surroundings import Surroundings

pack_codes, pack_scales, unpack_codes = map(
    compiled, (codes.pack_codes, codes.pack_scales, codes.unpack_codes)
)
matmul, normalize = map(compiled, (matmuls.matmul, matmuls.normalize))

problem = cpu_problem()
pytestmark = pytest.mark.skipif(bool(problem), reason=problem or "runs")

# rows, inputs, outputs: one row, partial steps and panels, many blocks of rows, many tiles.
SHAPES = [(13, 70, 33), *slow((1, 4, 5), (2, 6, 96), (40, 1100, 48), (210, 3300, 40), (3, 4100, 8))]


class Case:
    """A random weight, declared and packed."""

    def __init__(
        self, inputs: int, outputs: int, bits: int = 8, x_scale: float | None = None,
        gated: bool = False, weights: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        draw = np.random.default_rng(inputs + outputs)
        self.shape = WeightShape((inputs,), (outputs,), (None,) * 2)
        low, high = (-128, 128) if bits == 8 else (0, 256)
        drawn = draw.integers(low, high, (*weights, inputs * bits // 8, outputs))
        self.codes = drawn.astype(np.int8 if bits == 8 else np.uint8)
        self.given = draw.uniform(0.01, 0.1, (*weights, 1, outputs)).astype(np.float32)
        is_static = x_scale is not None
        format = WeightFormat("int8" if bits == 8 else "int4", activations="int8", static=is_static)
        self.scheme = QuantizedWeights(format, "float32")
        self.packed = pack_codes(self.codes, inputs, "int8", gated)
        self.x_scale = np.full(weights or 1, x_scale or 0.0, np.float32)
        self.scales = Scales(
            pack_scales(self.given, gated),
            None,
            inputs,
            "int8",
            self.x_scale if is_static else None,
            codes=f"int{bits}",
        )

    def by_xla(self, x: Any) -> np.ndarray:
        tensors = {"weight": self.codes, "scale": self.given, "input_scale": self.x_scale}
        multiply = jax.jit(lambda x, tensors: self.scheme.multiply(self.shape, x, tensors))
        return np.asarray(multiply(x, tensors))


def random(*shape: int, seed: int) -> np.ndarray:
    """Rows of different sizes. With so few bits, some numbers are halves of their row's largest."""
    draw = np.random.default_rng(seed)
    sizes = draw.uniform(0.01, 10, (*shape[:-1], 1))
    narrow = np.asarray(draw.normal(size=shape) * sizes).astype(jnp.bfloat16)
    return narrow.astype(np.float32)


def bits_of(found: Any) -> np.ndarray:
    return np.asarray(found, np.float32).view(np.uint32)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("x_scale", [None, 0.02])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
def test_has_the_bits_of_xla(
    bits: int, x_scale: float | None, rows: int, inputs: int, outputs: int
) -> None:
    case = Case(inputs, outputs, bits, x_scale)
    assert case.packed.shape == packed_codes_shape(inputs, outputs, bits, "int8")
    np.testing.assert_array_equal(unpack_codes(case.packed, inputs, outputs, "int8"), case.codes)
    x = random(rows, inputs, seed=0)
    x[rows // 2] = 0
    found = matmul(x, case.packed, outputs, scales=case.scales)
    np.testing.assert_array_equal(bits_of(found), bits_of(case.by_xla(x)))
    narrow = matmul(x.astype(jnp.bfloat16), case.packed, outputs, scales=case.scales)
    np.testing.assert_array_equal(bits_of(narrow), bits_of(found))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("inner", [21, *slow(16, 80)])
def test_what_surrounds_it(bits: int, inner: int) -> None:
    case = Case(34, 2 * inner, bits, gated=True)
    back = unpack_codes(case.packed, 34, 2 * inner, "int8", gated=True)
    np.testing.assert_array_equal(back, case.codes)
    outer = Surroundings(random, inner)
    found = outer.run(case.packed, case.scales)
    expected = outer.around(case.by_xla(normalize(outer.x, outer.norm)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("x_scale", [None, 0.02])
@pytest.mark.parametrize("sizes", [[3, 0, 9, 1], *slow([40, 1, 0, 2], [0, 0, 0, 0])])
def test_each_group_of_rows_has_its_own_matrix(x_scale: float | None, sizes: list[int]) -> None:
    case = Case(34, 46, x_scale=x_scale, weights=(4,))
    scales = case.scales
    if x_scale is not None:  # another one of each
        scales = scales._replace(x_scale=np.arange(1, 5, dtype=np.float32) * x_scale)
    x = random(sum(sizes) + 3, 34, seed=0)
    x[sum(sizes) :] = np.nan
    options: dict[str, Any] = {"gate": "pairs", "activation": "silu"}
    by_group = np.asarray(sizes, np.int32)
    found = matmul(x, case.packed, 46, sizes=by_group, scales=scales, **options)
    np.testing.assert_array_equal(found[sum(sizes) :], 0)
    for group, (end, size) in enumerate(zip(np.cumsum(sizes), sizes, strict=True)):
        own = scales._replace(
            scale=scales.scale[group],
            x_scale=None if scales.x_scale is None else scales.x_scale[group, None],
        )
        rows = x[end - size : end]
        alone = matmul(rows, case.packed[group], 46, scales=own, **options)
        np.testing.assert_array_equal(bits_of(found[end - size : end]), bits_of(alone))


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(st.data())
def test_a_row_has_the_same_bits_in_any_batch(data: st.DataObject) -> None:
    inputs, outputs = 2 * data.draw(st.integers(1, 90)), data.draw(st.integers(1, 70))
    case = Case(inputs, outputs, data.draw(st.sampled_from([4, 8])))
    x = random(61, inputs, seed=0)
    order = np.asarray(data.draw(st.permutations(range(61)))[: data.draw(st.integers(1, 61))])
    whole = np.asarray(matmul(x, case.packed, outputs, scales=case.scales))
    part = matmul(x[order], case.packed, outputs, scales=case.scales)
    np.testing.assert_array_equal(bits_of(part), bits_of(whole[order]))


def test_a_row_that_is_not_finite_stays_so_alone() -> None:
    case = Case(70, 33)
    x = random(5, 70, seed=0)
    bad = x.copy()
    bad[1, 69], bad[3, 0] = np.nan, np.inf
    found = np.asarray(matmul(bad, case.packed, 33, scales=case.scales))
    assert np.isnan(found[[1, 3]]).all()
    expected = np.asarray(matmul(x, case.packed, 33, scales=case.scales))
    np.testing.assert_array_equal(found[[0, 2, 4]], expected[[0, 2, 4]])


def test_scales_that_rounded_rows_cannot_have_are_refused() -> None:
    case, x = Case(64, 40), random(2, 64, seed=0)
    refused = {
        "one float32 scale and no zero": (
            case.scales._replace(zero=case.scales.scale),
            case.scales._replace(group=32, scale=jnp.tile(case.scales.scale, (1, 2, 1))),
        ),
        "only int8 rows": (case.scales._replace(dtype="float32", x_scale=case.x_scale),),
    }
    packed = {"int8": case.packed, "float32": pack_codes(case.codes, 64, "float32")}
    for message, all_scales in refused.items():
        for scales in all_scales:
            with pytest.raises(jax.errors.JaxRuntimeError, match=message):
                matmul(x, packed[str(scales.dtype)], 40, scales=scales).block_until_ready()
