"""Encodes quantized weights as compressed-tensors files: the inverse of reading.

In: a module and arrays as `QuantizedWeights` declares them. Out: names, dtypes, shapes and arrays
of a file. Must not know models or devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import ml_dtypes
import numpy as np

from jengine.models.tensors.quantized_pieces import QuantizedModule
from jengine.weights import packed_values as packed

Encode = Callable[[np.ndarray], np.ndarray]
WORD, BYTE = np.dtype(np.int32), np.dtype(np.uint8)
FLOAT = np.dtype(np.float32)


class SavedTensor(NamedTuple):
    """A file's tensor, encoded from one declared array."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    encode: Encode


def saved_tensors(modules: Iterable[QuantizedModule]) -> dict[str, list[SavedTensor]]:
    """Saved tensors by the name of the declared tensor they come from."""
    found: dict[str, list[SavedTensor]] = {}
    for module in modules:
        forms = {"weight": _weight, "scale": _scale, "zero": _zero, "input_scale": _input_scale}
        found.update({f"{module.name}.{name}": form(module) for name, form in forms.items()})
    return found


def _weight(module: QuantizedModule) -> list[SavedTensor]:
    bits, matrix = module.stored.weights.bits, (module.outputs, module.inputs)
    if module.stored.layout == "gpt_oss":
        return [_stacked(module, "blocks", _in_blocks)]
    if module.stored.layout == "int":
        return [_tensor(module, "weight", np.dtype(np.int8), matrix, _same)]
    if module.stored.layout == "float":
        dtype = np.dtype(ml_dtypes.float8_e4m3fn)
        return [_tensor(module, "weight", dtype, matrix, _same)]
    if module.stored.layout == "mxfp4":
        shape = module.outputs, module.inputs // 2
        return [_tensor(module, "weight_packed", BYTE, shape, _same)]
    shape = module.outputs, -(-module.inputs * bits // 32)
    size = np.array(matrix, np.int64)

    def words(values: np.ndarray) -> np.ndarray:
        unsigned = packed.unpaired(values) if bits == 4 else packed.unsigned(values)
        return packed.packed_words(unsigned, bits)

    return [
        _tensor(module, "weight_packed", WORD, shape, words),
        _tensor(module, "weight_shape", size.dtype, size.shape, lambda _: size),
    ]


def _scale(module: QuantizedModule) -> list[SavedTensor]:
    rows, groups = module.stored.block_rows, module.stored.weights.groups(module.inputs)
    if module.stored.layout == "gpt_oss":
        return [_stacked(module, "scales", packed.exponents)]
    if module.stored.layout == "mxfp4":
        shape = module.outputs, groups
        return [_tensor(module, "weight_scale", BYTE, shape, packed.exponents)]
    shape = -(-module.outputs // rows), groups
    return [_tensor(module, "weight_scale", FLOAT, shape, lambda scales: scales[::rows])]


def _zero(module: QuantizedModule) -> list[SavedTensor]:
    own = module.stored.weights
    shape = -(-module.outputs * own.bits // 32), own.groups(module.inputs)

    def words(zeros: np.ndarray) -> np.ndarray:
        return packed.packed_words(zeros.T, own.bits).T

    return [_tensor(module, "weight_zero_point", WORD, shape, words)]


def _input_scale(module: QuantizedModule) -> list[SavedTensor]:
    return [_tensor(module, "input_scale", FLOAT, (1,), lambda scales: scales[0])]


def _tensor(
    module: QuantizedModule, name: str, dtype: np.dtype, shape: tuple[int, ...], encode: Encode
) -> SavedTensor:
    return SavedTensor(f"{module.name}.{name}", dtype, shape, encode)


def _stacked(module: QuantizedModule, name: str, encode: Encode) -> SavedTensor:
    """gpt-oss's stacked experts in one tensor."""
    assert module.experts is not None, "this layout is chosen for stacked experts alone"
    groups = module.stored.weights.groups(module.inputs)
    shape = module.experts, module.outputs, groups, *((16,) if name == "blocks" else ())
    return SavedTensor(f"{module.name}_{name}", BYTE, shape, encode)


def _in_blocks(values: np.ndarray) -> np.ndarray:
    return values.reshape(*values.shape[:2], -1, 16)


def _same(values: np.ndarray) -> np.ndarray:
    return values
