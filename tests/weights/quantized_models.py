"""Tiny quantized checkpoints in the layouts of published ones, written number by number with numpy,
each with the plain checkpoint that it stands for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from jengine.weights.safetensors_file import read_header, write_file
from tests.models.tiny_models import write_tiny_native

FP8 = np.dtype(ml_dtypes.float8_e4m3fn)
GROUP = 16
BLOCK = (12, 20)  # outputs and inputs: the last blocks are partial
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
Tensors = dict[str, np.ndarray]


class Made(NamedTuple):
    """The tensors of one module in a file, and the weight [outputs, inputs] that they stand for."""

    tensors: Tensors
    weight: np.ndarray


def words(values: np.ndarray, bits: int) -> np.ndarray:
    """Values of rows in int32, lowest bits first."""
    per_word = 32 // bits
    parts = values.astype(np.uint64).reshape(len(values), -1, per_word)
    shifted = parts << (np.arange(per_word, dtype=np.uint64) * np.uint64(bits))
    return shifted.sum(-1).astype(np.uint32).view(np.int32)


def spread(scales: np.ndarray, rows: int, columns: int, shape: tuple[int, int]) -> np.ndarray:
    """A scale for each number of a matrix."""
    wide = np.repeat(np.repeat(scales, rows, 0), columns, 1)
    return wide[: shape[0], : shape[1]].astype(np.float32)


def scales_of(weight: np.ndarray, rows: int, columns: int, largest: float) -> np.ndarray:
    """bfloat16 scales of blocks, by which the largest number becomes `largest`."""
    outputs, inputs = weight.shape
    found = np.empty((-(-outputs // rows), -(-inputs // columns)))
    for row, column in np.ndindex(*found.shape):
        block = weight[row * rows : (row + 1) * rows, column * columns : (column + 1) * columns]
        found[row, column] = np.abs(block).max() / largest
    return found.astype(ml_dtypes.bfloat16)


def symmetric(weight: np.ndarray, bits: int, group: int | None) -> tuple[np.ndarray, ...]:
    """Signed integers, their scales, and what both stand for."""
    columns, largest = group or weight.shape[1], 2 ** (bits - 1) - 1
    scales = scales_of(weight, 1, columns, largest)
    wide = spread(scales, 1, columns, weight.shape)
    values = np.clip(np.round(weight / wide), -largest - 1, largest)
    return values, scales, (values * wide).astype(np.float32)


def asymmetric(weight: np.ndarray, bits: int, group: int) -> tuple[np.ndarray, ...]:
    """Unsigned integers, scales [outputs, groups], zeros, and what they stand for."""
    parts = weight.reshape(len(weight), -1, group)
    low, high = np.minimum(parts.min(-1), 0), np.maximum(parts.max(-1), 0)
    scales = ((high - low) / (2**bits - 1)).astype(np.float16)
    zeros = np.clip(np.round(-low / scales.astype(np.float32)), 0, 2**bits - 1)
    wide = spread(scales, 1, group, weight.shape)
    offset = spread(zeros, 1, group, weight.shape)
    values = np.clip(np.round(weight / wide) + offset, 0, 2**bits - 1)
    return values, scales, zeros, ((values - offset) * wide).astype(np.float32)


def packed(bits: int, group: int | None) -> Callable[[np.ndarray], Made]:
    """compressed-tensors, pack-quantized."""

    def make(weight: np.ndarray) -> Made:
        values, scales, plain = symmetric(weight, bits, group)
        tensors = {
            "weight_packed": words(values + 2 ** (bits - 1), bits),
            "weight_scale": scales,
            "weight_shape": np.array(weight.shape, np.int64),
        }
        return Made(tensors, plain)

    return make


def packed_with_zeros(weight: np.ndarray) -> Made:
    """compressed-tensors, pack-quantized, asymmetric."""
    values, scales, zeros, plain = asymmetric(weight, 4, GROUP)
    tensors = {
        "weight_packed": words(values, 4),
        "weight_scale": scales,
        "weight_zero_point": words(zeros.T, 4).T,
        "weight_shape": np.array(weight.shape, np.int64),
    }
    return Made(tensors, plain)


def int_quantized(weight: np.ndarray) -> Made:
    """compressed-tensors, int-quantized."""
    values, scales, plain = symmetric(weight, 8, None)
    return Made({"weight": values.astype(np.int8), "weight_scale": scales}, plain)


def float_of(rows: int | None, columns: int | None, name: str) -> Callable[[np.ndarray], Made]:
    """FP8 with a scale for each block; None: all."""

    def make(weight: np.ndarray) -> Made:
        across, along = rows or weight.shape[0], columns or weight.shape[1]
        scales = scales_of(weight, across, along, 448.0).astype(np.float32)
        wide = spread(scales, across, along, weight.shape)
        values = np.clip(weight / wide, -448, 448).astype(FP8)
        plain = (values.astype(np.float32) * wide).astype(np.float32)
        stored = scales.reshape(()) if rows is None and columns is None else scales
        return Made({"weight": values, name: stored}, plain)

    return make


def gptq(bits: int, offset: int) -> Callable[[np.ndarray], Made]:
    """GPTQ, whose zeros are stored `offset` smaller."""

    def make(weight: np.ndarray) -> Made:
        values, scales, zeros, plain = asymmetric(weight, bits, GROUP)
        stored = (zeros.astype(np.int64) - offset) % 2**bits
        tensors = {
            "qweight": words(values, bits).T,
            "qzeros": words(stored.T, bits),
            "scales": scales.T,
            "g_idx": (np.arange(weight.shape[1]) // GROUP).astype(np.int32),
        }
        return Made(tensors, plain)

    return make


def awq(weight: np.ndarray) -> Made:
    """AWQ."""
    values, scales, zeros, plain = asymmetric(weight, 4, GROUP)

    def shuffled(columns: np.ndarray) -> np.ndarray:
        parts = columns.reshape(len(columns), -1, 8)[..., AWQ_ORDER]
        return words(parts.reshape(columns.shape), 4)

    tensors = {"qweight": shuffled(values.T), "qzeros": shuffled(zeros.T), "scales": scales.T}
    return Made(tensors, plain)


def mxfp4(weight: np.ndarray) -> Made:
    """compressed-tensors, mxfp4-pack-quantized."""
    size = 32
    highest = scales_of(weight, 1, size, 6.0).astype(np.float32)
    exponents = np.ceil(np.log2(highest)).astype(int)
    wide = spread(2.0**exponents, 1, size, weight.shape)
    codes = np.abs((weight / wide)[..., None] - FP4).argmin(-1)
    pairs = codes[:, 0::2] + 16 * codes[:, 1::2]
    scales = (exponents + 127).astype(np.uint8)
    tensors = {"weight_packed": pairs.astype(np.uint8), "weight_scale": scales}
    return Made(tensors, (FP4[codes] * wide).astype(np.float32))


def ternary(inverse: bool, online: bool = False) -> Callable[[np.ndarray], Made]:
    """BitNet: four outputs in a byte and one scale, or its inverse; or plain, and rounded later."""

    def make(weight: np.ndarray) -> Made:
        mean = np.abs(weight).mean(dtype=np.float32)
        values = np.clip(np.round(weight * (1 / mean)), -1, 1)
        if online:
            return Made({"weight": weight}, values * mean)
        packed = sum(
            part.astype(np.uint8) + 1 << 2 * bits for bits, part in enumerate(np.split(values, 4))
        )
        scale = np.array([1 / mean if inverse else mean], np.float32)
        stands_for = values / scale if inverse else values * scale
        return Made({"weight": packed.astype(np.uint8), "weight_scale": scale}, stands_for)

    return make


def compressed(format: str, weights: dict[str, Any], **group: Any) -> dict[str, Any]:
    """A quantization_config of compressed-tensors."""
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, **group}},
        "ignore": ["lm_head", "re:.*(mlp|block_sparse_moe).gate$"],
    }


def integers(bits: int, group: int | None, **more: Any) -> dict[str, Any]:
    strategy = "channel" if group is None else "group"
    return {
        "num_bits": bits, "type": "int", "symmetric": True, "strategy": strategy,
        "group_size": group, **more,
    }  # fmt: skip


FLOATS = {"num_bits": 8, "type": "float", "symmetric": True}
FP8_CONFIG = {"quant_method": "fp8", "fmt": "e4m3", "modules_to_not_convert": ["lm_head", "gate"]}


class Layout(NamedTuple):
    """How one published format is written."""

    make: Callable[[np.ndarray], Made]
    config: dict[str, Any]
    rounds_activations: bool = False


GPTQ = {"quant_method": "gptq", "group_size": GROUP, "desc_act": False, "sym": False}
BITNET = {"quant_method": "bitnet", "linear_class": "autobitlinear"}
PACKED_4 = compressed("pack-quantized", integers(4, GROUP))
LAYOUTS = {
    "W4A16 group": Layout(packed(4, GROUP), PACKED_4),
    "W4A16 group, zeros": Layout(
        packed_with_zeros, compressed("pack-quantized", integers(4, GROUP, symmetric=False))
    ),
    "W4A16 channel": Layout(packed(4, None), compressed("pack-quantized", integers(4, None))),
    "W8A16 channel": Layout(packed(8, None), compressed("pack-quantized", integers(8, None))),
    "W8A16 int": Layout(int_quantized, compressed("int-quantized", integers(8, None))),
    "W8A8 int": Layout(
        int_quantized,
        compressed(
            "int-quantized", integers(8, None),
            input_activations={"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True},
        ),
        rounds_activations=True,
    ),
    "FP8 tensor": Layout(
        float_of(None, None, "weight_scale"),
        compressed("float-quantized", {**FLOATS, "strategy": "tensor"}),
    ),
    "FP8 channel": Layout(
        float_of(1, None, "weight_scale"),
        compressed("float-quantized", {**FLOATS, "strategy": "channel"}),
    ),
    "FP8 block": Layout(
        float_of(*BLOCK, "weight_scale"),
        compressed(
            "float-quantized", {**FLOATS, "strategy": "block", "block_structure": list(BLOCK)}
        ),
    ),
    "MXFP4": Layout(
        mxfp4,
        compressed(
            "mxfp4-pack-quantized", {**FLOATS, "num_bits": 4, "strategy": "group", "group_size": 32}
        ),
    ),
    "GPTQ 4": Layout(gptq(4, 1), {**GPTQ, "bits": 4}),
    "GPTQ 8": Layout(gptq(8, 1), {**GPTQ, "bits": 8}),
    "GPTQ v2": Layout(gptq(4, 0), {**GPTQ, "bits": 4, "checkpoint_format": "gptq_v2"}),
    "AWQ": Layout(
        awq,
        {
            "quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True,
            "version": "gemm", "modules_to_not_convert": ["gate"],
        },
    ),
    "DeepSeek FP8": Layout(
        float_of(*BLOCK, "weight_scale_inv"),
        {**FP8_CONFIG, "activation_scheme": "dynamic", "weight_block_size": list(BLOCK)},
        rounds_activations=True,
    ),
    "FP8 of vLLM": Layout(
        float_of(None, None, "weight_scale"),
        {**FP8_CONFIG, "activation_scheme": "dynamic"},
        rounds_activations=True,
    ),
    "BitLinear": Layout(ternary(True), {"quant_method": "bitnet"}, rounds_activations=True),
    "AutoBitLinear": Layout(ternary(False), BITNET, rounds_activations=True),
    "AutoBitLinear online": Layout(
        ternary(False, online=True), {**BITNET, "quantization_mode": "online"},
        rounds_activations=True,
    ),
}  # fmt: skip
TERNARY = tuple(name for name in LAYOUTS if "BitLinear" in name)


class Folders(NamedTuple):
    """A quantized checkpoint, and the plain one that it stands for."""

    quantized: Path
    plain: Path


def write_quantized(folder: Path, family: str, layout: Layout, **overrides: Any) -> Folders:
    """Write both, of random weights."""

    def make(name: str, array: np.ndarray) -> Made | None:
        if not is_quantized(name):
            return None
        module, made = name.removesuffix(".weight"), layout.make(array)
        named = {f"{module}.{one}": found for one, found in made.tensors.items()}
        return Made(named, made.weight)

    return write_folders(folder, family, layout.config, make, **overrides)


def write_folders(
    folder: Path,
    family: str,
    config: dict[str, Any],
    make: Callable[[str, np.ndarray], Made | None],
    **overrides: Any,
) -> Folders:
    """Write both; `make` gives the tensors of quantized ones by their whole names."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, **overrides}
    plain = write_tiny_native(folder / "plain", family, **sizes)
    quantized = folder / "quantized"
    quantized.mkdir()
    file = plain / "model.safetensors"
    given = {name: np.array(tensor.read()) for name, tensor in read_header(file).items()}
    stored, stands_for = {}, {}
    for name, array in given.items():
        made = make(name, array)
        stored.update({name: array} if made is None else made.tensors)
        stands_for[name] = array if made is None else made.weight
    write_tensors(file, stands_for)
    write_tensors(quantized / "model.safetensors", stored)
    written = json.loads((plain / "config.json").read_text())
    written["quantization_config"] = config
    (quantized / "config.json").write_text(json.dumps(written))
    return Folders(quantized, plain)


def is_quantized(name: str) -> bool:
    """Whether this is the weight of a module that all configs above quantize."""
    ends = ("proj.weight", "w1.weight", "w2.weight", "w3.weight", "proj_with_mqa.weight")
    return name.endswith(ends)


def write_tensors(file: Path, tensors: Tensors) -> None:
    """A safetensors file."""
    arrays = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    arrays = {name: array.reshape(tensors[name].shape) for name, array in arrays.items()}
    declared = [(name, array.dtype, array.shape) for name, array in arrays.items()]
    write_file(file, declared, arrays.values())


def change_tensors(folder: Path, change: Callable[[Tensors], object]) -> None:
    """Damage a checkpoint."""
    file = folder / "model.safetensors"
    tensors = {name: np.array(tensor.read()) for name, tensor in read_header(file).items()}
    change(tensors)
    write_tensors(file, tensors)
