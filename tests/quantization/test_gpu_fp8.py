"""FP8 weights as GPUs take them: the same results as where XLA multiplies, and the same tensors
back. That cuBLASLt runs them is shown by compiling, in `jengine.bench.gpu_proof`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jengine.layers.initializer import Initializer
from jengine.quantization.backends import weight_scheme
from jengine.quantization.gpu_fp8 import GpuFloat8
from jengine.quantization.on_load import QuantizedOnLoad
from jengine.quantization.quantized import QuantizedWeights
from jengine.quantization.scheme import Around, WeightShape
from jengine.weight_formats import WeightFormat
from sharding.mesh import one_device_mesh
from sharding.placement import Placement
from tests.marks import slow
from tests.quantization.compiled import Compiled

DYNAMIC = WeightFormat("fp8", activations="fp8")
STATIC = WeightFormat("fp8", activations="fp8", static=True)
SHAPES = {
    "plain": WeightShape((24,), (40,), ("embed", "mlp")),
    "gated": WeightShape((24,), (2, 16), ("embed", None, "mlp"), gated=True),
    "heads": WeightShape((3, 8), (24,), ("heads", None, "embed")),
    "inner": WeightShape((24,), (2, 4, 8), ("embed", "kv_heads", None, None), inner=True),
}


def random(*shape: int, seed: int = 0) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


@pytest.mark.parametrize("format", [DYNAMIC, STATIC])
@pytest.mark.parametrize("shape", ["gated", "inner", *slow("plain", "heads")])
def test_results_and_tensors_are_those_of_the_reference(shape: str, format: WeightFormat) -> None:
    weight = SHAPES[shape]
    declared = QuantizedWeights(format, "bfloat16")
    plain, scheme = Compiled(declared), Compiled(GpuFloat8(declared))
    specs = plain.declared(weight, jnp.bfloat16, Initializer(1.0))
    tensors = {
        name: np.asarray(random(*spec.shape, seed=at)).astype(spec.dtype)
        for at, (name, spec) in enumerate(specs.items())
    }
    tensors["scale"] = np.abs(tensors["scale"])
    if format.static:
        tensors["input_scale"] = np.abs(tensors["input_scale"]) + np.float32(0.1)
    prepared = scheme.prepare(weight, tensors)
    assert {name: (one.shape, one.dtype) for name, one in prepared.items()} == {
        name: (spec.shape, spec.dtype)
        for name, spec in scheme.prepared(weight, jnp.bfloat16).items()
    }
    assert prepared["weight"].shape == (*weight.outputs, *weight.inputs)
    for name, back in scheme.unpack(weight, prepared).items():
        np.testing.assert_array_equal(back, tensors[name])
    x = random(5, weight.matrix[0], seed=9)
    around = Around(activation="silu") if weight.gated else Around()
    found = scheme.apply(weight, x, prepared, around)
    expected = plain.apply(weight, x, tensors, around)
    assert found.dtype == (jnp.bfloat16 if weight.inner else jnp.float32)
    tolerance = 1e-2 if weight.inner else 1e-5
    np.testing.assert_allclose(
        np.asarray(found, np.float32), expected, rtol=tolerance, atol=tolerance * 30
    )


def test_weights_rounded_at_load_come_back_plain() -> None:
    weight = SHAPES["gated"]
    rounded = QuantizedOnLoad(DYNAMIC, "bfloat16")
    given, scheme = Compiled(rounded), Compiled(GpuFloat8(rounded))
    tensors = {"weight": random(*weight.shape).astype(jnp.bfloat16)}
    prepared = scheme.prepare(weight, tensors)
    assert prepared["weight"].shape == (2, 16, 24) and prepared["weight"].dtype.itemsize == 1
    restored = scheme.restore(weight, prepared)["weight"]
    expected = given.restore(weight, given.prepare(weight, tensors))["weight"]
    np.testing.assert_array_equal(restored, expected)


class Devices:
    """A mesh of devices that say what they are."""

    def __init__(self, *capabilities: str) -> None:
        self.flat = [SimpleNamespace(compute_capability=one) for one in capabilities]


def placement(*capabilities: str) -> Placement:
    made = Placement(one_device_mesh())
    mesh: Any = SimpleNamespace(devices=Devices(*capabilities), shape=made.mesh.shape)
    return Placement(mesh)


@pytest.mark.parametrize(
    ("format", "capabilities", "taken"),
    [
        (DYNAMIC, ("9.0", "9.0"), True),
        (STATIC, ("8.9",), True),
        (DYNAMIC, ("9.0", "8.0"), False),  # XLA converts the weights
        (WeightFormat("fp8", 128, activations="fp8", activation_groups=True), ("9.0",), False),
        (WeightFormat("fp8"), ("9.0",), False),
        (WeightFormat("int8"), ("9.0",), False),
    ],
)
def test_where_it_is_chosen(
    format: WeightFormat, capabilities: tuple[str, ...], taken: bool
) -> None:
    declared = QuantizedWeights(format, "bfloat16")
    where = placement(*capabilities)
    chosen = weight_scheme(declared, SHAPES["plain"], "triton", where)
    assert chosen == (GpuFloat8(declared) if taken else declared)
    experts = WeightShape((8,), (4,), ("experts", "embed", "mlp"), groups=3)
    assert weight_scheme(declared, experts, "triton", where) == declared


def check_nearest(found: Any, ratio: np.ndarray) -> np.ndarray:
    """FP8 numbers in float64, none further from the ratio than its nearest one, but for ties."""
    values = np.asarray(found).astype(np.float64)
    nearest = np.clip(ratio, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    assert (np.abs(values - ratio) <= np.abs(nearest - ratio) + 1e-6 * np.abs(ratio)).all()
    return values


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_both_schemes_multiply_as_numpy_does_in_float64(dtype: str) -> None:
    """A scale for each output and token, by which the largest number becomes 448."""
    weight = SHAPES["gated"]
    plain = random(*weight.shape).astype(dtype)
    x = random(5, 24, seed=9).at[2].mul(1000.0).at[3].set(0.0)
    wide = np.asarray(plain, np.float32)
    scale = (np.abs(wide).max(0) / np.float32(448)).astype(dtype).astype(np.float32)
    x_scale = np.maximum(np.abs(np.asarray(x)).max(-1, keepdims=True) / 448, 1e-12)
    given = QuantizedOnLoad(DYNAMIC, dtype)
    tensors = given.prepare(weight, {"weight": plain})
    np.testing.assert_allclose(tensors["scale"][0], scale, rtol=3e-7)
    values = check_nearest(tensors["weight"], wide / scale)
    few = check_nearest(given.quantized.few_bits(x, tensors)[0], np.asarray(x) / x_scale)
    expected = np.einsum("ti,ijk->tjk", few, values) * x_scale[..., None] * scale
    for scheme in (given, GpuFloat8(given)):
        found = scheme.multiply(weight, x, scheme.prepare(weight, {"weight": plain}))
        error = np.abs(np.asarray(found) - expected)
        assert (error <= 1e-5 * np.abs(expected).max((1, 2), keepdims=True)).all()
