"""Blocks of GGUF files as they are multiplied: equal to the dequantized product, of every type."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

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


TABLE = replace(WEIGHT, outputs_first=True)
LOOKED_UP = np.asarray([[0, ROWS - 1], [33, 7]])
DTYPES = ("float32", "bfloat16")


@partial(jax.jit, static_argnums=0)
def made_of(format: WeightFormat, tensors: Tensors) -> dict[str, Any]:
    """What the schemes make of declared tensors, as one program."""
    given = QuantizedWeights(format, "float32")
    flat, flat_tensors = QuantizedWeights(format.flat, "float32"), given.flat(WEIGHT, tensors)
    tables = [QuantizedTable(one) for one in (given, *([] if problem else [CpuCodes(given)]))]
    return {
        "steps": abs(flat_tensors["scale"]).max(),
        "dequantized": [given.dequantized(WEIGHT, tensors), flat.dequantized(WEIGHT, flat_tensors)],
        "tables": [of_table(scheme, tensors) for scheme in tables],
        "products": {}
        if problem
        else {dtype: products(format, tensors, dtype) for dtype in DTYPES},
    }


def of_table(scheme: QuantizedTable, tensors: Tensors) -> tuple[Array, Array]:
    """Rows that are looked up, and a product as an output head."""
    made = scheme.prepare(TABLE, {name: array.T for name, array in tensors.items()})
    return scheme.lookup(TABLE, LOOKED_UP, made), scheme.multiply(TABLE, jnp.asarray(X), made)


def products(format: WeightFormat, tensors: Tensors, dtype: str) -> tuple[Tensors, list[Array]]:
    """The tensors unpacked again, and products of all rows of X and of the first few: kernels of
    one row, of two panels, and of several rows."""
    scheme = CpuCodes(QuantizedWeights(format, dtype))
    packed, x = scheme.prepare(WEIGHT, tensors), jnp.asarray(X).astype(dtype)
    rows = (len(X), 1, 3, 5)
    return scheme.unpack(WEIGHT, packed), [scheme.multiply(WEIGHT, x[:n], packed) for n in rows]


def error_of(found: Any, x: Any, plain: np.ndarray) -> float:
    """By what rounding is measured: the sum of products without their signs."""
    x = np.asarray(x, np.float64)
    return float((np.abs(found - x @ plain.T) / (np.abs(x) @ np.abs(plain.T))).max())


def check(packed: PackedTensor, format: WeightFormat) -> None:
    """Against float64 sums of the dequantized weight."""
    plain = plain_array(packed).astype(np.float64)
    tensors = declared(packed, format)
    made = jax.tree.map(np.asarray, made_of(format, tensors))
    steps = made["steps"]
    for values in made["dequantized"]:
        np.testing.assert_allclose(values, plain.T, rtol=1e-6, atol=1e-5 * steps)
    for rows, product in made["tables"]:
        np.testing.assert_allclose(rows, plain[LOOKED_UP], rtol=1e-6, atol=2e-5 * steps)
        assert error_of(product, X, plain) < 2e-6
    for dtype, (unpacked, (found, *few)) in made["products"].items():
        assert CpuCodes(QuantizedWeights(format, dtype)).fits(WEIGHT)
        for name, array in unpacked.items():
            np.testing.assert_array_equal(array, tensors[name], err_msg=name)
        assert error_of(found, X.astype(dtype), plain) < 2e-6
        for own in few:
            np.testing.assert_array_equal(own, found[: len(own)])


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
