"""Matmuls of the CPU kernels equal numpy, whatever surrounds them, and have the same bits for a row
alone and in any batch, however the weight is stored."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import Array

from pallas_kernels.choice import cpu_problem
from pallas_kernels.cpu import matmul as matmuls
from pallas_kernels.cpu.matmul import FusedNorm, packed_shape
from tests.compiled import compiled
from tests.marks import slow

matmul, pack, unpack, columns = map(
    compiled, (matmuls.matmul, matmuls.pack, matmuls.unpack, matmuls.columns)
)
problem = cpu_problem()
pytestmark = pytest.mark.skipif(bool(problem), reason=problem or "runs")

FLOATS = ["bfloat16", "float16", "float32"]
DTYPES = [FLOATS[0], *slow(*FLOATS[1:])]
SHAPES = [(1, 7, 5), (13, 65, 33), (40, 130, 70), *slow((2, 64, 96), (210, 1100, 48))]


def random(*shape: int, seed: int, dtype: Any = "float32") -> Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def doubles(x: Array) -> np.ndarray:
    return np.asarray(x).astype(np.float64)


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """As the left operand is rounded for a weight of this type."""
    return (
        np.asarray(x, np.float32).astype(jnp.bfloat16).astype(np.float64)
        if dtype == "bfloat16"
        else x
    )


def activated(x: np.ndarray, activation: str | None) -> np.ndarray:
    if activation is None:
        return x
    if activation == "silu":
        return x / (1 + np.exp(-x))
    if activation == "gelu":
        return 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def normed(x: np.ndarray, norm: FusedNorm | None) -> np.ndarray:
    if norm is None:
        return x
    centred = x - x.mean(-1, keepdims=True) if norm.kind == "layer" else x
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + norm.eps)
    scaled = scaled * (doubles(norm.weight) + norm.offset)
    return scaled if norm.bias is None else scaled + doubles(norm.bias)


def norm_of(kind: str | None, width: int, dtype: str) -> FusedNorm | None:
    if kind is None:
        return None
    bias = random(width, seed=8, dtype=dtype) if kind == "layer" else None
    offset = 1.0 if kind == "rms" else 0.0
    return FusedNorm(kind, random(width, seed=7, dtype=dtype), bias, 1e-5, offset)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
def test_equals_numpy_however_the_weight_is_stored(
    dtype: str, rows: int, inputs: int, outputs: int
) -> None:
    x, weight = random(rows, inputs, seed=0), random(inputs, outputs, seed=1, dtype=dtype)
    packed = pack(weight)
    assert packed.shape == packed_shape(inputs, outputs, dtype)
    np.testing.assert_array_equal(unpack(packed, inputs, outputs), weight)
    np.testing.assert_array_equal(pack(np.asarray(weight).T, storage="outputs_first"), packed)
    some = np.asarray([0, outputs - 1, outputs // 2])
    expected = np.asarray(weight).T[some].astype("float32")
    np.testing.assert_array_equal(columns(packed, inputs, some), expected)
    found = matmul(x, packed, outputs)
    expected = rounded(doubles(x), dtype) @ doubles(weight)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * inputs**0.5)
    for storage, array in (("inputs_first", weight), ("outputs_first", np.asarray(weight).T)):
        in_place = matmul(x, array, outputs, storage=storage)
        np.testing.assert_array_equal(found, in_place)


@pytest.mark.parametrize("dtype", ["bfloat16", *slow("float32")])
@pytest.mark.parametrize("activation", [None, "silu", "gelu_tanh", "gelu"])
@pytest.mark.parametrize("norm", [None, "rms", "layer"])
@pytest.mark.parametrize("surrounded", [False, True])
def test_what_surrounds_it(
    dtype: str, activation: str | None, norm: str | None, surrounded: bool
) -> None:
    rows, inputs, outputs = 15, 70, 50
    x, weight = random(rows, inputs, seed=0), random(inputs, outputs, seed=1, dtype=dtype)
    described = norm_of(norm, inputs, dtype)
    bias = random(outputs, seed=2, dtype=dtype) if surrounded else None
    residual = random(rows, outputs, seed=3) if surrounded else None
    found = matmul(
        x, pack(weight), outputs, activation=activation, norm=described, bias=bias,
        residual=residual,
    )  # fmt: skip
    expected = rounded(normed(doubles(x), described), dtype) @ doubles(weight)
    expected = activated(expected + (doubles(bias) if surrounded else 0), activation)
    expected = expected + (doubles(residual) if surrounded else 0)
    # The norm's last bit may round a bfloat16 the other way.
    tolerance = 2e-2 if dtype == "bfloat16" and norm else 1e-4
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inner", [21, *slow(16, 80)])
@pytest.mark.parametrize("storage", ["packed", "inputs_first", "outputs_first"])
def test_a_gate_is_applied_to_its_own_column(dtype: str, inner: int, storage: str) -> None:
    x, weight = random(9, 34, seed=0), random(34, 2 * inner, seed=1, dtype=dtype)
    stored = {
        "packed": lambda: pack(weight, gated=True),
        "inputs_first": lambda: weight,
        "outputs_first": lambda: np.asarray(weight).T,
    }[storage]()
    bias = random(2 * inner, seed=2)
    options = {"storage": storage, "gate": "halves", "activation": "silu", "bias": bias}
    found = matmul(x, stored, 2 * inner, **options)
    both = rounded(doubles(x), dtype) @ doubles(weight) + doubles(bias)
    expected = activated(both[:, :inner], "silu") * both[:, inner:]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    again = unpack(pack(weight, gated=True), 34, 2 * inner, gated=True)
    np.testing.assert_array_equal(again, weight)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inner", [21, *slow(16, 80)])
@pytest.mark.parametrize("storage", ["packed", "inputs_first"])
def test_gates_that_alternate_with_their_columns(dtype: str, inner: int, storage: str) -> None:
    x, weight = random(9, 34, seed=0), random(34, 2 * inner, seed=1, dtype=dtype)
    bias = random(2 * inner, seed=2)
    stored = pack(weight) if storage == "packed" else weight
    options = {"storage": storage, "gate": "pairs", "activation": "silu", "bias": bias}
    found = matmul(x, stored, 2 * inner, **options)
    order = np.r_[0 : 2 * inner : 2, 1 : 2 * inner : 2]
    halves = pack(np.asarray(weight)[:, order], gated=True)
    options |= {"storage": "packed", "gate": "halves", "bias": np.asarray(bias)[order]}
    np.testing.assert_array_equal(found, matmul(x, halves, 2 * inner, **options))


def test_results_in_bfloat16_are_the_float32_results_rounded_once() -> None:
    x, weight = random(5, 64, seed=0).astype("bfloat16"), random(64, 40, seed=1, dtype="bfloat16")
    wide = matmul(x, pack(weight), 40)
    found = matmul(x, pack(weight), 40, dtype=jnp.bfloat16)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found, np.asarray(wide).astype(jnp.bfloat16))


@settings(max_examples=6, deadline=None)
@given(st.data())
def test_a_row_has_the_same_bits_in_any_batch(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(FLOATS))
    inputs, outputs = data.draw(st.integers(1, 90)), 2 * data.draw(st.integers(1, 40))
    gated = data.draw(st.booleans())
    norm = norm_of(data.draw(st.sampled_from([None, "rms", "layer"])), inputs, dtype)
    weight = pack(random(inputs, outputs, seed=1, dtype=dtype), gated=gated)
    x = random(61, inputs, seed=0)
    order = data.draw(st.permutations(range(61)))[: data.draw(st.integers(1, 61))]
    options = {
        "norm": norm,
        "gate": "halves" if gated else None,
        "activation": "silu" if gated else None,
    }
    whole = np.asarray(matmul(x, weight, outputs, **options))
    part = np.asarray(matmul(np.asarray(x)[np.asarray(order)], weight, outputs, **options))
    np.testing.assert_array_equal(part, whole[order])


@pytest.mark.parametrize("padded", [0.4, 1.0])
def test_padding_rows_are_zero_and_others_do_not_notice_them(padded: float) -> None:
    x, weight = random(30, 64, seed=0), pack(random(64, 40, seed=1, dtype="bfloat16"))
    positions = np.where(np.random.default_rng(2).random(30) < padded, -1, 7).astype(np.int32)
    poisoned = np.where(positions[:, None] < 0, np.float32(np.nan), x)
    found = matmul(poisoned, weight, 40, positions=positions)
    expected = np.where(positions[:, None] < 0, 0, matmul(x, weight, 40))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [[3, 0, 9, 1], [0, 0, 13, 0], [40, 1, 0, 2], [0, 0, 0, 0]])
@pytest.mark.parametrize("gate", [None, "pairs"])
@pytest.mark.slow
def test_each_group_of_rows_has_its_own_matrix(
    dtype: str, sizes: list[int], gate: str | None
) -> None:
    padding = 3  # rows after the last group
    x, weights = random(sum(sizes) + padding, 33, seed=0), random(4, 33, 46, seed=1, dtype=dtype)
    x = x.at[sum(sizes) :].set(jnp.nan)
    biases = random(4, 46, seed=2)
    options = {"gate": gate, "activation": "silu"}
    by_group = options | {"bias": biases, "sizes": jnp.asarray(sizes, jnp.int32)}
    found = matmul(x, pack(weights), 46, **by_group)
    in_place = matmul(x, weights, 46, storage="inputs_first", **by_group)
    np.testing.assert_array_equal(found, in_place)
    np.testing.assert_array_equal(found[sum(sizes) :], 0)
    ends = np.cumsum(sizes)
    for group, (end, size) in enumerate(zip(ends, sizes, strict=True)):
        if size:
            rows = x[end - size : end]
            own = matmul(rows, pack(weights[group]), 46, bias=biases[group], **options)
            np.testing.assert_array_equal(found[end - size : end], own)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"outputs": 70}, "the weight has another size"),
        ({"residual": jnp.zeros((2, 40))}, "the residual"),
        ({"positions": jnp.zeros(4, jnp.int32)}, "positions"),
        ({"norm": FusedNorm("rms", jnp.ones(63))}, "norm weight"),
        ({"sizes": jnp.asarray([4], jnp.int32)}, "groups have more rows"),
        ({"bias": jnp.zeros(39)}, "the bias has another size"),
    ],
)
def test_operands_of_other_sizes_are_refused(change: dict[str, Any], complaint: str) -> None:
    given = {"outputs": 40, **change}
    weight = pack(random(64, 40, seed=1))
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"matmul: .*{complaint}"):
        matmul(random(3, 64, seed=0), weight, given.pop("outputs"), **given).block_until_ready()
