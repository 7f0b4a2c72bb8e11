"""Quantized weights against the arithmetic that their formats define, in numpy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jengine.quantization.codes import FP8, paired, unpaired
from jengine.quantization.on_load import QuantizedOnLoad, codes_of, least_error_steps
from jengine.quantization.quantized import QuantizedWeights
from jengine.quantization.scheme import Around, WeightShape
from jengine.quantization.unquantized import UNQUANTIZED
from jengine.weight_formats import WeightFormat
from tests.marks import slow
from tests.quantization.compiled import Compiled

SHAPES = {
    "plain": WeightShape((12,), (5,), (None,) * 2),
    "heads out": WeightShape((12,), (2, 3, 4), (None,) * 4),
    "heads in": WeightShape((2, 3, 2), (7,), (None,) * 4),
    "gated": WeightShape((12,), (2, 5), (None,) * 3, gated=True),
}
EXPERTS = WeightShape((12,), (4, 2), (None,) * 4, groups=3)
FORMATS = {
    "int8 per output": WeightFormat("int8"),
    "int8 in groups": WeightFormat("int8", 4),
    "int8 with zeros": WeightFormat("int8", 4, zeros=True),
    "int4 per output": WeightFormat("int4"),
    "int4 in groups": WeightFormat("int4", 4),
    "int4 with zeros": WeightFormat("int4", 4, zeros=True),
    "int4 with fine zeros": WeightFormat("int4", 4, zeros=True, fine_zeros=True),
    "fp8 per output": WeightFormat("fp8"),
    "fp8 in partial groups": WeightFormat("fp8", 5),
    "fp4 in groups": WeightFormat("fp4", 4),
}
ACTIVATIONS = {
    "int8 of tokens": WeightFormat("int8", activations="int8"),
    "int8, one scale": WeightFormat("int8", activations="int8", static=True),
    "int8 of tokens, weights in groups": WeightFormat("int8", 4, activations="int8"),
    "int8 of groups": WeightFormat("int8", 4, activations="int8", activation_groups=True),
    "fp8 of tokens": WeightFormat("fp8", activations="fp8"),
    "fp8, one scale": WeightFormat("fp8", activations="fp8", static=True),
    "fp8 of partial groups": WeightFormat("fp8", 5, activations="fp8", activation_groups=True),
}
USUAL = ["int8 per output", "int4 with zeros"]
OTHERS = [one for one in [*FORMATS, *ACTIVATIONS] if one not in USUAL]
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def slow_unless(holds: bool) -> tuple[pytest.MarkDecorator, ...]:
    """The marks of a case that is run always, or in complete runs only."""
    return () if holds else (pytest.mark.slow,)


def scheme_of(format: WeightFormat) -> Any:
    return Compiled(QuantizedWeights(format, "float32"))


def random_tensors(shape: WeightShape, format: WeightFormat) -> dict[str, jax.Array]:
    """Tensors of this format, every code possible."""
    draw = np.random.default_rng(0)
    found: dict[str, Any] = {}
    for name, spec in scheme_of(format).prepared(shape, jnp.float32).items():
        if name in ("scale", "input_scale"):
            found[name] = draw.uniform(0.01, 0.1, spec.shape)
        elif name == "zero":
            parts = 8 if format.fine_zeros else 1
            found[name] = draw.integers(0, 2**format.bits * parts, spec.shape) / parts
        elif spec.dtype == FP8:
            found[name] = np.clip(draw.normal(0, 50, spec.shape), -448, 448)
        else:
            low, high = (-128, 128) if spec.dtype == jnp.int8 else (0, 256)
            found[name] = draw.integers(low, high, spec.shape)
        found[name] = jnp.asarray(found[name], spec.dtype)
    return found


def expected_weight(
    shape: WeightShape, format: WeightFormat, tensors: dict[str, Any]
) -> np.ndarray:
    """float64 [inputs, outputs], number by number."""
    inputs, outputs = shape.matrix
    given = {name: np.asarray(array) for name, array in tensors.items()}
    codes = given["weight"].reshape(-1, outputs)
    scales = given["scale"].reshape(-1, outputs).astype(np.float64)
    found = np.empty((inputs, outputs))
    for i, o in np.ndindex(inputs, outputs):
        pair = format.bits == 4
        code = int(codes[i // 2, o]) >> (4 * (i % 2)) & 15 if pair else float(codes[i, o])
        group = 0 if format.group is None else i // format.group
        if format.values == "fp4":
            code = FP4[code % 8] * (-1 if code >= 8 else 1)
        elif format.zeros:
            unsigned = code + 128 if format.bits == 8 else code
            code = unsigned - float(given["zero"].reshape(-1, outputs)[group, o])
        elif format.values == "int4":
            code = code - 8
        found[i, o] = code * scales[group, o]
    return found


@pytest.mark.parametrize(
    "shape", [pytest.param(name, marks=slow_unless(name == "gated")) for name in SHAPES]
)
@pytest.mark.parametrize("format", FORMATS)
def test_a_weight_is_its_values_times_their_scales(shape: str, format: str) -> None:
    weight, chosen = SHAPES[shape], FORMATS[format]
    tensors = random_tensors(weight, chosen)
    expected = expected_weight(weight, chosen, tensors)
    dequantized = scheme_of(chosen).dequantized(weight, tensors)
    np.testing.assert_allclose(dequantized.reshape(weight.matrix), expected, rtol=1e-6)
    x = np.random.default_rng(1).normal(size=(3, 2, 12))
    found = scheme_of(chosen).multiply(weight, jnp.asarray(x, jnp.float32), tensors)
    assert found.shape == (3, 2, *weight.outputs) and found.dtype == jnp.float32
    flat = np.asarray(found).reshape(3, 2, -1)
    np.testing.assert_allclose(flat, x @ expected, rtol=1e-4, atol=1e-3)


def rounded_activations(x: np.ndarray, format: WeightFormat, tensors: dict[str, Any]) -> np.ndarray:
    """x after a trip through few bits, by the formats' definition."""
    found = np.empty(x.shape)
    size = (format.group if format.activation_groups else None) or x.shape[-1]
    for row, start in np.ndindex(len(x), -(-x.shape[-1] // size)):
        part = x[row, start * size : (start + 1) * size].astype(np.float32)
        largest = np.float32(127 if format.activations == "int8" else 448)
        scale = np.abs(part).max() / largest
        if format.static:
            scale = np.asarray(tensors["input_scale"]).max()
        units = np.clip(part / scale, -largest - (format.activations == "int8"), largest)
        narrow = np.round(units) if format.activations == "int8" else units.astype(FP8)
        found[row, start * size : (start + 1) * size] = narrow.astype(np.float64) * scale
    return found


@pytest.mark.parametrize("format", ACTIVATIONS)
def test_activations_are_rounded_as_the_format_says(format: str) -> None:
    weight, chosen = SHAPES["heads out"], ACTIVATIONS[format]
    tensors = random_tensors(weight, chosen)
    x = np.random.default_rng(2).normal(size=(4, 12)).astype(np.float32)
    expected = rounded_activations(x, chosen, tensors) @ expected_weight(weight, chosen, tensors)
    found = scheme_of(chosen).multiply(weight, jnp.asarray(x), tensors)
    np.testing.assert_allclose(
        np.asarray(found).reshape(4, -1), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max()
    )
    assert np.abs(expected - x @ expected_weight(weight, chosen, tensors)).max() > 1e-3


def test_one_scale_of_activations_is_the_largest_of_fused_weights() -> None:
    weight, chosen = SHAPES["gated"], ACTIVATIONS["fp8, one scale"]
    tensors = random_tensors(weight, chosen)
    x = jnp.full((1, 12), 0.3)
    same = {**tensors, "input_scale": jnp.full((1, 2, 5), tensors["input_scale"].max())}
    found, expected = (scheme_of(chosen).multiply(weight, x, given) for given in (tensors, same))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("format", [*USUAL, *slow(*OTHERS)])
def test_each_row_meets_the_weight_of_its_expert(format: str) -> None:
    chosen = {**FORMATS, **ACTIVATIONS}[format]
    tensors = random_tensors(EXPERTS, chosen)
    x = np.random.default_rng(3).normal(size=(6, 12)).astype(np.float32)
    sizes = [2, 0, 3]  # the last row is padding
    found = scheme_of(chosen).multiply_groups(EXPERTS, jnp.asarray(x), tensors, jnp.asarray(sizes))
    alone = replace(EXPERTS, groups=None, axes=EXPERTS.axes[1:])
    rows = np.repeat(np.arange(3), sizes)
    for row, expert in enumerate(rows):
        own = {name: array[expert] for name, array in tensors.items()}
        expected = scheme_of(chosen).multiply(alone, jnp.asarray(x[row : row + 1]), own)[0]
        np.testing.assert_allclose(found[row], expected, rtol=1e-4, atol=1e-3)


def test_what_stands_around_a_matmul_is_as_with_a_plain_weight() -> None:
    weight, chosen = SHAPES["gated"], FORMATS["int4 with zeros"]
    tensors = random_tensors(weight, chosen)
    plain = scheme_of(chosen).dequantized(weight, tensors).reshape(weight.shape)
    draw = np.random.default_rng(4)
    x, bias, residual = (
        jnp.asarray(draw.normal(size=size), jnp.float32) for size in ((3, 12), (2, 5), (3, 5))
    )
    around = Around(bias=bias, activation="silu", residual=residual)
    found = scheme_of(chosen).apply(weight, x, tensors, around)
    expected = Compiled(UNQUANTIZED).apply(weight, x, {"weight": plain}, around)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("axis", [0, 1])
def test_pairs_come_apart_as_they_were_put_together(axis: int) -> None:
    codes = jnp.asarray(np.random.default_rng(5).integers(0, 16, (6, 4)), jnp.uint8)
    np.testing.assert_array_equal(unpaired(paired(codes, axis), axis), codes)


ON_LOAD = {
    "int8": WeightFormat("int8"),
    "int4": FORMATS["int4 with fine zeros"],
    "int4, partial group": WeightFormat("int4", 8, zeros=True, fine_zeros=True),
    "fp8": WeightFormat("fp8", activations="fp8"),
}


@pytest.mark.parametrize(
    "shape",
    [pytest.param(name, marks=slow_unless(name == "experts")) for name in (*SHAPES, "experts")],
)
@pytest.mark.parametrize(
    "format", [pytest.param(name, marks=slow_unless(name != "int4")) for name in ON_LOAD]
)
def test_rounding_at_load_is_off_by_half_a_step_at_most(shape: str, format: str) -> None:
    weight = {**SHAPES, "experts": EXPERTS}[shape]
    scheme = Compiled(QuantizedOnLoad(ON_LOAD[format], "float32"))
    given = jnp.asarray(np.random.default_rng(6).normal(size=weight.shape), jnp.float32)
    prepared = scheme.prepare(weight, {"weight": given})
    wanted = scheme.prepared(weight, jnp.float32)
    assert {name: (array.shape, array.dtype) for name, array in prepared.items()} == {
        name: (spec.shape, spec.dtype) for name, spec in wanted.items()
    }
    back = scheme.restore(weight, prepared)["weight"]
    assert back.shape == given.shape and back.dtype == given.dtype
    # Four bits: a range may be twice the largest weight, and ends be cut off by half a step too.
    steps = {"int8": 1 / 127, "int4": 2 / 14, "fp8": 1 / 8}[scheme.format.values]
    difference = np.abs(np.asarray(back - given))
    assert 0 < difference.max() <= steps / 2 * float(jnp.abs(given).max()) * 1.001


def test_four_bits_change_weights_least() -> None:
    groups = jnp.asarray(np.random.default_rng(8).normal(size=(4, 32, 24)), jnp.float32)
    found = jax.jit(lambda groups: least_error_steps(groups, 1, "float32"))(groups)
    low, high = groups.min(1, keepdims=True), groups.max(1, keepdims=True)
    scale = (high - low) / 15
    usual = jnp.clip(jnp.round((groups - low) / scale), 0, 15) * scale + low
    symmetric = jnp.abs(groups).max(1, keepdims=True) / 7
    best = (codes_of(groups, found) - found.zero) * found.scale
    errors = [
        float(jnp.sum((one - groups) ** 2))
        for one in (best, usual, jnp.round(groups / symmetric) * symmetric)
    ]
    assert errors[0] < 0.97 * errors[1] < 0.75 * errors[2]


def test_blocks_of_scales_and_minima_are_kept() -> None:
    """As GGUF's Q4_1 has them: weights on a grid that does not contain zero."""
    draw = np.random.default_rng(10)
    codes = draw.integers(0, 16, (32, 24))
    codes[:2] = [[0], [15]]
    scale, zero = draw.uniform(0.01, 0.1, 24), draw.uniform(4, 11, 24)
    scheme = Compiled(
        QuantizedOnLoad(WeightFormat("int4", 32, zeros=True, fine_zeros=True), "float32")
    )
    weight = WeightShape((32,), (24,), (None, None))
    given = jnp.asarray((codes - zero) * scale, jnp.float32)
    found = scheme.restore(weight, scheme.prepare(weight, {"weight": given}))["weight"]
    assert (
        np.abs(np.asarray(found - given)) <= scale / 16 * 1.01
    ).all()  # half an eighth of a step


def test_a_file_holds_fine_zeros_as_integers_of_eight_bits() -> None:
    scheme = Compiled(QuantizedOnLoad(FORMATS["int4 with fine zeros"], "bfloat16"))
    for weight in (SHAPES["heads in"], SHAPES["gated"], EXPERTS):
        given = jnp.asarray(np.random.default_rng(11).normal(size=weight.shape), jnp.bfloat16)
        prepared = scheme.prepare(weight, {"weight": given})
        saved = scheme.as_saved(weight, prepared)
        wanted = scheme.saved.prepared(weight, "bfloat16")
        assert {name: (one.shape, one.dtype) for name, one in saved.items()} == {
            name: (spec.shape, spec.dtype) for name, spec in wanted.items()
        }
        expected = Compiled(scheme.quantized).dequantized(weight, prepared)
        found = Compiled(scheme.saved).dequantized(weight, saved)
        np.testing.assert_array_equal(found, expected)


def test_what_was_rounded_is_rounded_to_the_same() -> None:
    """Parameters of a rounded model that are set again change nothing."""
    weight = WeightShape((64,), (24,), (None, None))
    scheme = Compiled(
        QuantizedOnLoad(WeightFormat("int4", 32, zeros=True, fine_zeros=True), "float32")
    )
    given = jnp.asarray(np.random.default_rng(9).normal(size=weight.shape), jnp.float32)
    once = scheme.restore(weight, scheme.prepare(weight, {"weight": given}))
    again = scheme.restore(weight, scheme.prepare(weight, once))
    np.testing.assert_allclose(again["weight"], once["weight"], rtol=1e-5)


@pytest.mark.parametrize(("format", "dtype"), [("fp8", "float32"), ("int4", "float16")])
def test_a_weight_of_zeros_stays_zero(format: str, dtype: str) -> None:
    weight, scheme = SHAPES["plain"], Compiled(QuantizedOnLoad(ON_LOAD[format], dtype))
    prepared = scheme.prepare(weight, {"weight": jnp.zeros(weight.shape)})
    np.testing.assert_array_equal(scheme.multiply(weight, jnp.zeros((2, 12)), prepared), 0.0)
