"""Codes in Triton kernels: the results of the reference in the interpreter, and the same tensors.

That they compile for GPUs without a copy of a weight is shown by `jengine.bench.gpu_proof`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jengine.layers.initializer import Initializer
from jengine.layers.moe import Picked
from jengine.layers.norm import RowNorm
from jengine.quantization.backends import matmul_backend, weight_scheme
from jengine.quantization.gpu_codes import GpuCodes
from jengine.quantization.on_load import QuantizedOnLoad
from jengine.quantization.quantized import QuantizedWeights
from jengine.quantization.scheme import Around, Stored, WeightScheme, WeightShape
from jengine.weight_formats import WeightFormat
from jengine.weights.gguf.blocks import FORMATS as BLOCK_FORMATS
from sharding.mesh import one_device_mesh
from sharding.placement import Placement
from tests.marks import slow
from tests.pallas_kernels.implementations import TRITON
from tests.quantization.compiled import Compiled

ALONE = Placement(one_device_mesh())
BLOCKS = WeightFormat("fp8", 128, activations="fp8", activation_groups=True)
FORMATS = {
    "int4": WeightFormat("int4", 64),
    "int4 with zeros": WeightFormat("int4", 128, zeros=True),
    "int4 with fine zeros": WeightFormat("int4", 32, zeros=True, fine_zeros=True),
    "int4 with real zeros": WeightFormat("int4", 16, zeros=True, real_zeros=True),
    "int8 by 16": WeightFormat("int8", 16),
    "Q4_K": BLOCK_FORMATS["Q4_K"].weights,
    "Q6_K": BLOCK_FORMATS["Q6_K"].weights,
    "int4 per output": WeightFormat("int4"),
    "int8 with zeros": WeightFormat("int8", 64, zeros=True),
    "mxfp4": WeightFormat("fp4", 32),
    "fp8 blocks": BLOCKS,
}
SHAPES = {
    "gated": WeightShape((256,), (2, 24), ("embed", None, "mlp"), gated=True, inner=True),
    "heads": WeightShape((4, 1, 64), (40,), ("kv_heads", "queries_of_kv_head", None, "embed")),
}


def random_tensors(scheme: WeightScheme, weight: WeightShape) -> dict[str, Any]:
    """What a checkpoint holds of a weight."""
    rng = np.random.default_rng(weight.matrix[1])
    found = {}
    for name, spec in scheme.declared(weight, jnp.bfloat16, Initializer(1.0)).items():
        if name == "scale" and np.dtype(spec.dtype).kind == "f":
            drawn = 2.0 ** rng.integers(-9, -5, spec.shape)
        elif np.dtype(spec.dtype).kind in "iu":
            limits = np.iinfo(spec.dtype)
            high = 16 if name == "zero" and scheme.format.bits == 4 else limits.max + 1  # type: ignore[attr-defined]
            drawn = rng.integers(limits.min, high, spec.shape)
        elif name == "zero":
            drawn = rng.integers(0, 121, spec.shape) / 8
        elif name.endswith("_unit"):
            drawn = 2.0 ** rng.integers(-12, -8, spec.shape)
        else:
            drawn = rng.normal(size=spec.shape) * 40
        found[name] = jnp.asarray(drawn).astype(spec.dtype)
    return found


@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ("gated", "int4 with fine zeros"), ("heads", "int8 with zeros"), ("gated", "mxfp4"),
        ("gated", "fp8 blocks"), ("heads", "Q4_K"), ("gated", "Q6_K"),
        *slow(("heads", "int4"), ("heads", "int4 with fine zeros")),
        *slow(("gated", "int4"), ("gated", "int4 with zeros"), ("heads", "int4 with zeros")),
        *slow(("gated", "int8 with zeros")),
        *slow(("heads", "mxfp4"), ("heads", "fp8 blocks")),
        *slow(("gated", "int4 per output"), ("heads", "int4 per output")),
    ],
)  # fmt: skip
def test_results_and_tensors_are_those_of_the_reference(
    name: str, shape: str, backend: str
) -> None:
    weight, format = SHAPES[shape], FORMATS[name]
    plain = QuantizedWeights(format, "bfloat16")
    for float8 in {False, format == BLOCKS}:
        scheme = Compiled(GpuCodes(plain, ALONE, float8=float8))
        assert scheme.fits(weight)
        tensors = random_tensors(plain, weight)
        prepared = scheme.prepare(weight, tensors)
        assert {name: (one.shape, one.dtype) for name, one in prepared.items()} == {
            name: (spec.shape, spec.dtype)
            for name, spec in scheme.prepared(weight, jnp.bfloat16).items()
        }
        for key, back in scheme.unpack(weight, prepared).items():
            np.testing.assert_array_equal(back, tensors[key])
        x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 256)), jnp.float32)
        around = Around(
            RowNorm(jnp.ones(256), None, 1e-5), activation="silu" if weight.gated else None
        )
        found = scheme.apply(weight, x, prepared, around)
        expected = Compiled(plain).apply(weight, x, tensors, around)
        assert found.dtype == (jnp.bfloat16 if weight.inner else jnp.float32)
        # FP8 by FP8 keeps what the reference rounds to bfloat16: dequantized operands.
        # Least values counted in scales may round the other way.
        is_rounded = weight.inner or float8 or format.flat.real_zeros
        tolerance = 1e-2 if is_rounded else 1e-5
        scale = float(jnp.abs(expected).max())
        np.testing.assert_allclose(
            np.asarray(found, np.float32), expected, rtol=tolerance, atol=tolerance * scale
        )


EXPERTS = {
    "mxfp4": FORMATS["mxfp4"],
    "int8 per output": WeightFormat("int8"),
    "fp8 blocks": BLOCKS,
    "int4 with zeros": WeightFormat("int4", 64, zeros=True),
}


@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize(
    ("name", "activation"),
    [("mxfp4", "clamped_swiglu"), ("fp8 blocks", "silu"),
     *slow(("int8 per output", "silu"), ("int4 with zeros", "silu"))],
)  # fmt: skip
def test_experts_equal_the_reference(name: str, activation: str, backend: str) -> None:
    """gpt-oss's experts have biases, and an activation that the kernel lacks."""
    format, biased = EXPERTS[name], activation != "silu"
    plain = QuantizedWeights(format, "bfloat16")
    scheme = GpuCodes(plain, ALONE)
    found, expected = (experts_layer(one, plain, biased, activation) for one in (scheme, plain))
    assert not found[2].any()
    # Activations between the matmuls are rounded to bfloat16 first here, so that a few of them
    # become the next number of FP8.
    wrong = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert wrong < (0.03 if format == BLOCKS else 0.01)


def experts_layer(
    scheme: WeightScheme, plain: QuantizedWeights, biased: bool, activation: str
) -> np.ndarray:
    """Five tokens through two of three experts each; the third token is padding."""
    shapes = (
        WeightShape((128,), (128, 2), ("experts", "embed", "mlp", None), groups=3),
        WeightShape((128,), (128,), ("experts", "mlp", "embed"), groups=3),
    )
    rng = np.random.default_rng(4)
    stored = []
    for weight in shapes:
        assert not isinstance(scheme, GpuCodes) or scheme.fits(weight)
        tensors = random_tensors(plain, weight)
        bias = jnp.asarray(rng.normal(size=(3, *weight.outputs)), jnp.float32) if biased else None
        stored.append(Stored(weight, Compiled(scheme).prepare(weight, tensors), bias))
    picked = Picked(
        jnp.asarray(rng.random((5, 2)), jnp.float32),
        jnp.asarray([[0, 2], [2, 1], [1, 0], [0, 1], [2, 0]], jnp.int32),
    )
    live = jnp.asarray([0, 1, -1, 3, 4], jnp.int32)
    x = jnp.asarray(np.random.default_rng(7).normal(size=(5, 128)), jnp.float32)
    made = jax.jit(lambda x: scheme.mix_experts(*stored, x, picked, activation, live))(x)
    return np.asarray(made)


def test_weights_rounded_at_load_come_back_plain() -> None:
    weight, given = SHAPES["gated"], QuantizedOnLoad(FORMATS["int4 with fine zeros"], "bfloat16")
    scheme, reference = Compiled(GpuCodes(given, ALONE)), Compiled(given)
    drawn = np.random.default_rng(1).normal(size=weight.shape)
    tensors = {"weight": jnp.asarray(drawn, jnp.bfloat16)}
    prepared = scheme.prepare(weight, tensors)
    assert prepared["weight"].shape == (2, 24, 128) and prepared["weight"].dtype == jnp.uint8
    expected = reference.restore(weight, reference.prepare(weight, tensors))["weight"]
    np.testing.assert_array_equal(scheme.restore(weight, prepared)["weight"], expected)


LINEAR = SHAPES["gated"]
ODD = WeightShape((100,), (8,), ("embed", "mlp"))
LAYER_EXPERTS = WeightShape((128,), (64, 2), ("experts", "embed", "mlp", None), groups=2)
STATIC = WeightFormat("fp8", activations="fp8", static=True)


@pytest.mark.parametrize(
    ("format", "weight", "taken"),
    [
        (WeightFormat("int4", 64), LINEAR, True),
        (WeightFormat("int4", 64), ODD, False),  # no whole blocks
        (WeightFormat("int8"), LINEAR, False),  # XLA's own fusion
        (WeightFormat("int8"), LAYER_EXPERTS, True),
        (BLOCKS, LINEAR, True),
        (STATIC, LAYER_EXPERTS, False),  # every expert has a scale of its own for activations
    ],
)
def test_where_it_is_chosen(format: WeightFormat, weight: WeightShape, taken: bool) -> None:
    declared = QuantizedWeights(format, "bfloat16")
    for exact in (False, True):
        backend = matmul_backend("triton", pack=True, exact=exact)
        chosen = weight_scheme(declared, weight, backend, ALONE)
        assert chosen == (GpuCodes(declared, ALONE, exact=exact) if taken else declared)
    assert weight_scheme(declared, weight, "xla", ALONE) == declared
    exact_numbers = QuantizedWeights(format, "float32")
    assert weight_scheme(exact_numbers, weight, "triton", ALONE) == exact_numbers
