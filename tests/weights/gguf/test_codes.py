"""Blocks of GGUF files as they are multiplied: equal to the dequantized product, of every type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jengine.quantization.cpu_codes import CpuCodes
from jengine.quantization.quantized import QuantizedWeights
from jengine.quantization.quantized_table import QuantizedTable
from jengine.quantization.scheme import Tensors, WeightShape
from jengine.weight_formats import Integers, StoredBlocks, Values, WeightFormat
from jengine.weights.gguf.blocks import (
    FORMATS,
    common_format,
    plain_array,
    shared_in,
    values_in,
)
from jengine.weights.gguf.header import TYPES, PackedTensor, PackedType
from pallas_kernels.choice import cpu_problem
from tests.weights.gguf.test_gguf import HALVES, random_blocks

ROWS, INPUTS = 40, 512
KINDS = {one.name: one for one in TYPES.values() if one.name in FORMATS}
WEIGHT = WeightShape((INPUTS,), (ROWS,), (None, None))
X = np.random.default_rng(2).normal(size=(13, INPUTS)).astype(np.float32)
problem = cpu_problem()


def has_least(kind: str) -> bool:
    blocks = FORMATS[kind].weights.blocks
    return blocks is not None and blocks.least


def stored(folder: Path, kind: PackedType, *, flat: bool = False) -> PackedTensor:
    """A matrix of random blocks; `flat`: with a scale of 0 in some."""
    count = ROWS * INPUTS // kind.numbers
    blocks = random_blocks(kind, count)
    if flat:
        blocks[::3, HALVES[kind.name][0]] = 0
        blocks[::3, HALVES[kind.name][0] + 1] = 0
    file = folder / "blocks"
    file.write_bytes(blocks.tobytes())
    return PackedTensor(file, "w", kind, (ROWS, INPUTS), 0, blocks.size)


def declared(packed: PackedTensor, format: WeightFormat) -> Tensors:
    parts = {"weight": values_in(packed, format)}
    for name in format.shared_dtypes("float32"):
        parts[name] = shared_in(name, packed, format)
    return {name: jnp.asarray(array.T) for name, array in parts.items()}


def check_table(format: WeightFormat, tensors: Tensors, plain: np.ndarray, steps: Any) -> None:
    """Rows are looked up, and multiplied as an output head."""
    shape = WeightShape((INPUTS,), (ROWS,), (None, None), outputs_first=True)
    table = {name: array.T for name, array in tensors.items()}
    rows = jnp.asarray([[0, ROWS - 1], [33, 7]])
    given = QuantizedWeights(format, "float32")
    for matrix in (given, *([] if problem else [CpuCodes(given)])):
        scheme = QuantizedTable(matrix)
        made = scheme.prepare(shape, table)
        found = scheme.lookup(shape, rows, made)
        np.testing.assert_allclose(found, plain[rows], rtol=1e-6, atol=2e-5 * steps)
        expected = X.astype(np.float64) @ plain.T
        most = np.abs(X) @ np.abs(plain.T)
        assert (np.abs(scheme.multiply(shape, jnp.asarray(X), made) - expected) / most).max() < 2e-6


def check(packed: PackedTensor, format: WeightFormat) -> None:
    """Against float64 sums of the dequantized weight."""
    given, plain = QuantizedWeights(format, "float32"), plain_array(packed).astype(np.float64)
    tensors = declared(packed, format)
    flat = QuantizedWeights(format.flat, "float32")
    flat_tensors = given.flat(WEIGHT, tensors)
    steps = np.abs(flat_tensors["scale"]).max()
    for scheme, own in ((given, tensors), (flat, flat_tensors)):
        values = np.asarray(scheme.dequantized(WEIGHT, own))
        np.testing.assert_allclose(values, plain.T, rtol=1e-6, atol=1e-5 * steps)
    check_table(format, tensors, plain, steps)
    if problem:
        return
    for dtype in ("float32", "bfloat16"):
        scheme = CpuCodes(QuantizedWeights(format, dtype))
        assert scheme.fits(WEIGHT)
        packed_tensors = scheme.prepare(WEIGHT, tensors)
        for name, array in scheme.unpack(WEIGHT, packed_tensors).items():
            np.testing.assert_array_equal(array, tensors[name], err_msg=name)
        x = jnp.asarray(X).astype(dtype)
        found = scheme.multiply(WEIGHT, x, packed_tensors)
        expected = np.asarray(x, np.float64) @ plain.T
        most = np.abs(np.asarray(x, np.float64)) @ np.abs(plain.T)  # what rounding is measured by
        assert (np.abs(found - expected) / most).max() < 2e-6
        for rows in (x[:1], x[:3], x[:5]):  # kernels of one row, of two panels, and of several rows
            own = scheme.multiply(WEIGHT, rows, packed_tensors)
            np.testing.assert_array_equal(own, found[: len(rows)])


@pytest.mark.parametrize("kind", KINDS)
def test_codes_multiply_to_the_dequantized_product(kind: str, tmp_path: Path) -> None:
    format = common_format({kind})
    assert format == FORMATS[kind].weights
    check(stored(tmp_path, KINDS[kind]), format)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if has_least(kind)])
def test_groups_of_one_value(kind: str, tmp_path: Path) -> None:
    packed = stored(tmp_path, KINDS[kind], flat=True)
    check(packed, FORMATS[kind].weights)


S6, S8 = Integers(6), Integers(8)
U4, U6 = Integers(4, signed=False), Integers(6, signed=False)
COMMON = [
    (("Q4_0", "Q4_1"), "int8", 32, StoredBlocks(Integers(5), least=True)),
    (("Q3_K", "Q4_0"), "int4", 16, StoredBlocks(Integers(4), False, 32, S6)),
    (
        ("Q4_K", "Q6_K"),
        "int8",
        16,
        StoredBlocks(S6, True, 256, S8, U6),
    ),
    (("Q5_0", "Q6_K", "Q8_0"), "int8", 16, StoredBlocks(S8, False, 32, S8)),
    (("IQ4_XS", "Q4_K"), "int8", 32, StoredBlocks(S8, True, 256, S8, U6)),
    (("Q4_1", "Q6_K"), "int8", 16, StoredBlocks(S6, True, 32, S8, U4)),
]


@pytest.mark.parametrize(("kinds", "values", "group", "blocks"), COMMON)
def test_one_format_holds_codes_of_several_types(
    kinds: tuple[str, ...], values: Values, group: int, blocks: StoredBlocks, tmp_path: Path
) -> None:
    expected = WeightFormat(values, group, blocks=blocks)
    assert common_format({*kinds}) == expected
    for kind in kinds:
        check(stored(tmp_path, KINDS[kind]), expected)


def test_plain_numbers_have_no_codes() -> None:
    assert common_format({"Q8_0", "F16"}) is None and common_format(set()) is None
    assert common_format({"Q8_0", "MXFP4"}) is None


@pytest.mark.skipif(bool(problem), reason=problem or "runs")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "MXFP4"])
def test_memory_is_what_the_file_takes(kind: str, dtype: str) -> None:
    """Of whole panels. Scales of MXFP4 become float32."""
    scheme = CpuCodes(QuantizedWeights(FORMATS[kind].weights, dtype))
    wide = WeightShape((INPUTS,), (64,), (None, None))
    specs = scheme.prepared(wide, jnp.dtype(dtype)).values()
    size = sum(np.prod(spec.shape) * jnp.dtype(spec.dtype).itemsize for spec in specs)
    assert size == 64 * INPUTS // KINDS[kind].numbers * KINDS[kind].size
