"""Decodes quantized modules of a checkpoint, one function per file layout.

In: a checkpoint's tensors, and its quantized modules. Out: tensors as `QuantizedWeights` declares
them, decoded when read. Must not know models or devices.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np

from jengine.errors import CheckpointError
from jengine.models.tensors.quantized_pieces import QuantizedModule
from jengine.weights import packed_values as packed
from jengine.weights.quantized_files import (
    SCALES,
    DecodedTensor,
    ModuleTensors,
    Shape,
    checked,
    finite,
)
from jengine.weights.stored_parameter import TypedTensor

SHARED = {"int8": "I8", "float16": "F16", "float32": "F32"}  # dtypes in safetensors' names
EXPONENTS = np.dtype(ml_dtypes.float8_e8m0fnu)


def decoded(
    folder: Path, tensors: Mapping[str, TypedTensor], modules: Iterable[QuantizedModule]
) -> dict[str, TypedTensor | DecodedTensor]:
    """All tensors, with those of quantized modules decoded."""
    found: dict[str, TypedTensor | DecodedTensor] = dict(tensors)
    for module in modules:
        files = ModuleTensors(folder, module, tensors)
        made = LAYOUTS[module.stored.layout](files)
        if module.dequantized:
            made = [_dequantized(files, made)]
        for name in files.used:
            found.pop(name, None)
        found.update({one.name: one for one in made})
    return found


def _scale_shapes(files: ModuleTensors) -> tuple[Shape, ...]:
    """Possible shapes of compressed-tensors' and FP8's scales."""
    outputs, rows = files.module.outputs, files.module.stored.block_rows
    if files.groups > 1 or rows > 1:
        return ((-(-outputs // rows), files.groups),)
    return (outputs, 1), (outputs,), (1, 1), (1,), ()


def _read_plain(files: ModuleTensors, dtype: str, scale: str) -> list[DecodedTensor]:
    """Values [outputs, inputs]; 4-bit ones are packed in pairs."""
    width = files.module.inputs * files.format.bits // 8
    weight = files.take("weight", (dtype,), (files.module.outputs, width))
    files.ignore("weight_shape")
    return [
        files.made("weight", weight, weight.read),
        files.scale(scale, *_scale_shapes(files)),
        *files.input_scale(),
    ]


def _read_int(files: ModuleTensors) -> list[DecodedTensor]:
    return _read_plain(files, "I8", "weight_scale")


def _read_float(files: ModuleTensors) -> list[DecodedTensor]:
    return _read_plain(files, "F8_E4M3", "weight_scale")


def _read_fp8(files: ModuleTensors) -> list[DecodedTensor]:
    """FP8; DeepSeek's and Qwen's "inverse" block scales multiply like any other."""
    inverse = files.has("weight_scale_inv")
    if not files.format.static:
        files.ignore("input_scale")
    return _read_plain(files, "F8_E4M3", "weight_scale_inv" if inverse else "weight_scale")


def _read_packed(files: ModuleTensors) -> list[DecodedTensor]:
    """compressed-tensors' integers, packed in 32-bit words along the inputs."""
    module, bits = files.module, files.format.bits
    words = -(-module.inputs * bits // 32)
    weight = files.take("weight_packed", ("I32",), (module.outputs, words))
    files.refuse_order("weight_g_idx")
    files.ignore("weight_shape")
    width = module.inputs * bits // 8

    def values() -> np.ndarray:
        return packed.values_along_inputs(weight.read(), bits)[:, :width]

    found = [
        files.made("weight", weight, values),
        files.scale("weight_scale", *_scale_shapes(files)),
        *files.input_scale(),
    ]
    if not files.format.zeros:
        files.ignore("weight_zero_point")
        return found
    zeros = files.take(
        "weight_zero_point", ("I32",), (-(-module.outputs * bits // 32), files.groups)
    )

    def decode() -> np.ndarray:
        return packed.unsigned_values(zeros.read().T, bits)[:, : module.outputs].T

    return [*found, files.made("zero", zeros, decode)]


def _read_mxfp4(files: ModuleTensors) -> list[DecodedTensor]:
    """MXFP4: pairs of FP4 along the inputs, and E8M0 scales."""
    module = files.module
    weight = files.take("weight_packed", ("U8",), (module.outputs, module.inputs // 2))
    scale = files.take("weight_scale", ("U8", "F8_E8M0"), (module.outputs, files.groups))
    return [
        files.made("weight", weight, weight.read),
        files.made("scale", scale, lambda: finite(scale, packed.power_of_two(scale.read()))),
    ]


def _read_gguf(files: ModuleTensors) -> list[DecodedTensor]:
    """GGUF's blocks, already split into codes and per-group tensors."""
    format, (outputs, inputs) = files.format, (files.module.outputs, files.module.inputs)
    kind = "I8" if format.bits == 8 else "U8"
    taken = {"weight": files.take("weight", (kind,), (outputs, inputs * format.bits // 8))}
    for name, dtype in format.shared_dtypes("float32").items():
        shape = outputs, format.groups(inputs, name)
        taken[name] = files.take(name, (SHARED[dtype],), shape)
    return [files.made(name, tensor, tensor.read) for name, tensor in taken.items()]


def _read_gpt_oss(files: ModuleTensors) -> list[DecodedTensor]:
    """gpt-oss's MXFP4: all experts in one tensor, inputs in blocks of 32."""
    module = files.module
    assert module.experts is not None, "this layout is chosen for stacked experts alone"
    shape = module.experts, module.outputs, files.groups
    blocks = files.take("blocks", ("U8",), (*shape, 16), joint="_")
    scales = files.take("scales", ("U8", "F8_E8M0"), shape, joint="_")

    @functools.cache  # cached: each expert's piece reads it, and the NaN check reads all of it
    def exponents() -> np.ndarray:
        return finite(scales, scales.read().view(EXPONENTS))

    return [
        files.made("weight", blocks, lambda: blocks.read().reshape(*shape[:2], -1)),
        files.made("scale", scales, exponents),
    ]


def _dequantized(files: ModuleTensors, parts: list[DecodedTensor]) -> DecodedTensor:
    """The dequantized weight, computed when read."""
    module = files.module
    by_name = {one.name.removeprefix(f"{module.name}."): one for one in parts}

    def decode() -> np.ndarray:
        zero = by_name["zero"].read() if files.format.zeros else None
        return packed.dequantized(
            by_name["weight"].read(), by_name["scale"].read(), zero, files.format
        )

    shape = module.outputs, module.inputs
    return DecodedTensor(f"{module.name}.weight", shape, parts[0].source, decode)


def _read_gptq(files: ModuleTensors) -> list[DecodedTensor]:
    """GPTQ: integers packed along the inputs, zeros packed along the outputs."""
    module, bits, groups = files.module, files.format.bits, files.groups
    _check_words(files, module.inputs * bits, module.outputs * bits)
    weight = files.take("qweight", ("I32",), (module.inputs * bits // 32, module.outputs))
    zeros = files.take("qzeros", ("I32",), (groups, module.outputs * bits // 32))
    files.refuse_order("g_idx")
    offset = np.uint8(module.stored.zero_offset)

    def decode() -> np.ndarray:
        # Stored as zero - 1, so that zero 0 wraps around to the largest value.
        found = packed.unsigned_values(zeros.read(), bits) + offset
        return (found & np.uint8(2**bits - 1)).T

    return [
        files.made("weight", weight, lambda: packed.values_along_rows(weight.read(), bits)),
        files.scale("scales", (groups, module.outputs), transposed=True),
        files.made("zero", zeros, decode),
    ]


def _read_awq(files: ModuleTensors) -> list[DecodedTensor]:
    """AWQ: integers packed along the outputs, in its own order."""
    module, groups = files.module, files.groups
    _check_words(files, module.outputs * 4, module.inputs * 16)
    weight = files.take("qweight", ("I32",), (module.inputs, module.outputs // 8))
    zeros = files.take("qzeros", ("I32",), (groups, module.outputs // 8))
    return [
        files.made("weight", weight, lambda: packed.awq_values(weight.read())),
        files.scale("scales", (groups, module.outputs), transposed=True),
        files.made("zero", zeros, lambda: packed.awq_columns(zeros.read()).T),
    ]


PLAIN = ("F32", "F16", "BF16")
SMALLEST_MEAN = 1e-5


def _read_bitlinear(files: ModuleTensors) -> list[DecodedTensor]:
    """BitNet's ternary weights, packed, divided by their scale."""
    weight, scale = _quarters(files), files.take("weight_scale", SCALES, (1,), ())
    outputs = files.module.outputs

    def decode() -> np.ndarray:
        return finite(scale, packed.scales_per_output(1.0 / checked(scale), outputs, 1))

    return [weight, files.made("scale", scale, decode)]


def _read_autobitlinear(files: ModuleTensors) -> list[DecodedTensor]:
    """BitNet's ternary weights, packed or as floats, multiplied by their scale."""
    scale = files.scale("weight_scale", (1,), ())
    outputs, inputs = files.module.outputs, files.module.inputs
    weight = files.take("weight", ("U8", *PLAIN), (outputs // 4, inputs), (outputs, inputs))
    if weight.dtype == "U8":
        return [_quarters(files), scale]
    weight = files.take("weight", PLAIN, (outputs, inputs))
    return [files.made("weight", weight, lambda: packed.from_ternary(weight.read())), scale]


def _quarters(files: ModuleTensors) -> DecodedTensor:
    module = files.module
    if module.outputs % 4:
        raise CheckpointError(
            f"{files.folder}: {module.name!r} has {module.outputs} outputs, expected"
            " a multiple of 4, as a byte has four of them."
        )
    weight = files.take("weight", ("U8",), (module.outputs // 4, module.inputs))
    return files.made(
        "weight", weight, lambda: packed.from_ternary(packed.ternary_in_quarters(weight.read()))
    )


def _read_online_bitlinear(files: ModuleTensors) -> list[DecodedTensor]:
    """BitNet's unpacked weights, ternarised with their mean absolute value as scale."""
    module = files.module
    weight = files.take("weight", PLAIN, (module.outputs, module.inputs))

    @functools.cache
    def mean() -> np.ndarray:
        found = np.abs(checked(weight)).mean(dtype=np.float32)
        return np.maximum(found, np.float32(SMALLEST_MEAN))

    def values() -> np.ndarray:
        steps = np.asarray(weight.read(), np.float32) * (np.float32(1.0) / mean())
        return packed.from_ternary(np.clip(np.round(steps), -1, 1))

    def scale() -> np.ndarray:
        # The scale is rounded to the file's dtype.
        rounded = mean().astype(weight.read().dtype)
        return packed.scales_per_output(rounded, module.outputs, 1)

    return [files.made("weight", weight, values), files.made("scale", weight, scale)]


def _check_words(files: ModuleTensors, *bits: int) -> None:
    if any(count % 32 for count in bits):
        module = files.module
        raise CheckpointError(
            f"{files.folder}: {module.name!r} has {module.inputs} inputs and {module.outputs}"
            f" outputs, which {module.stored.layout} cannot pack in words of 32 bits."
        )


LAYOUTS: Mapping[str, Callable[[ModuleTensors], list[DecodedTensor]]] = {
    "int": _read_int,
    "float": _read_float,
    "fp8": _read_fp8,
    "packed": _read_packed,
    "mxfp4": _read_mxfp4,
    "gpt_oss": _read_gpt_oss,
    "gguf": _read_gguf,
    "gptq": _read_gptq,
    "awq": _read_awq,
    "bitlinear": _read_bitlinear,
    "autobitlinear": _read_autobitlinear,
    "online_bitlinear": _read_online_bitlinear,
}
