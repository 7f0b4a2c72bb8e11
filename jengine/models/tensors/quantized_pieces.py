"""Checkpoint tensors of quantized modules and the parameters they fill.

In: a Quantization and pieces of the plain model. Out: the checkpoint's quantized modules, and
pieces under the names of `QuantizedWeights`. Must not know files or schemes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from jengine.errors import CheckpointError
from jengine.models.tensors.checkpoint import Piece
from jengine.weight_formats import Layout, Quantization, StoredFormat, WeightFormat

Pieces = Mapping[str, tuple[Piece, ...]]
WEIGHT = ".weight"
ROUTER = "router"
METHODS: dict[Layout, str] = {
    "int": "compressed-tensors",
    "float": "compressed-tensors",
    "packed": "compressed-tensors",
    "mxfp4": "compressed-tensors",
    "gptq": "gptq",
    "awq": "awq",
    "fp8": "fp8",
    "gpt_oss": "mxfp4",
    "gguf": "gguf",
    "bitlinear": "bitnet",
    "autobitlinear": "bitnet",
    "online_bitlinear": "bitnet",
}
# Methods that list all quantized modules; others leave routers unquantized.
ROUTERS = ("compressed-tensors",)

# Quantized in files, but used absorbed too (MLA), so it is dequantized when read.
DEQUANTIZED = "kv_up"


class QuantizedModule(NamedTuple):
    """A checkpoint module with a quantized weight [outputs, inputs]."""

    name: str
    outputs: int
    inputs: int
    stored: StoredFormat
    experts: int | None = None  # number of experts stacked in the tensor
    dequantized: bool = False  # the model declares the plain weight


def stored_formats(quantization: Quantization, pieces: Pieces) -> dict[str, StoredFormat]:
    """Format of each of our `Linear` paths, from its checkpoint modules."""
    found: dict[str, StoredFormat] = {}
    for path, parts in pieces.items():
        if not path.endswith(WEIGHT):
            continue
        names = list(dict.fromkeys(piece.name.removesuffix(WEIGHT) for piece in parts))
        formats = [quantization.format_of(name) for name in names]
        if all(_is_stacked(piece) for piece in parts):
            formats = [one if one and one.layout == "gpt_oss" else None for one in formats]
        elif all(is_table(piece) for piece in parts):
            # Of tables, only GGUF's are quantized.
            formats = [one if one and one.layout == "gguf" else None for one in formats]
        elif not all(is_matrix(piece) for piece in parts):
            continue
        if path.endswith(f".{ROUTER}{WEIGHT}"):
            formats = [one if one and METHODS[one.layout] in ROUTERS else None for one in formats]
        if any(one != formats[0] for one in formats):
            odd = next(name for name, one in zip(names, formats, strict=True) if one != formats[0])
            raise CheckpointError(
                f"config.json: quantization_config: {names[0]!r} and {odd!r} have different "
                "formats, but they are multiplied as one matrix."
            )
        if formats[0] is not None:
            found[path.removesuffix(WEIGHT)] = formats[0]
    return found


def stored_modules(quantization: Quantization, pieces: Pieces) -> Iterator[QuantizedModule]:
    """The checkpoint's quantized modules, found from the plain pieces."""
    seen: set[str] = set()
    for path, stored in stored_formats(quantization, pieces).items():
        for piece in pieces[path + WEIGHT]:
            name = piece.name.removesuffix(WEIGHT)
            if name in seen:
                continue
            seen.add(name)
            if _is_stacked(piece):
                experts, inputs, outputs = piece.shape
                yield QuantizedModule(name, outputs, inputs, stored, experts)
            else:
                outputs, inputs = piece.shape
                yield QuantizedModule(name, outputs, inputs, stored)
    for path, parts in pieces.items():
        for piece in parts if is_dequantized(path) else ():
            name = piece.name.removesuffix(WEIGHT)
            format = quantization.format_of(name)
            if format is not None:
                outputs, inputs = piece.shape
                yield QuantizedModule(name, outputs, inputs, format, dequantized=True)


def quantized_pieces(quantization: Quantization, pieces: Pieces) -> dict[str, tuple[Piece, ...]]:
    """Pieces of the quantized model, under the tensor names of `QuantizedWeights`."""
    formats = {} if quantization.on_load else stored_formats(quantization, pieces)
    found: dict[str, tuple[Piece, ...]] = {}
    for path, parts in pieces.items():
        stored = formats.get(path.removesuffix(WEIGHT)) if path.endswith(WEIGHT) else None
        if stored is None:
            found[path] = parts
            continue
        module = path.removesuffix(WEIGHT)
        for name in tensor_names(stored.weights):
            found[f"{module}.{name}"] = tuple(
                made for one in parts for made in _pieces(one, name, stored.weights)
            )
    return found


def tensor_names(format: WeightFormat) -> tuple[str, ...]:
    """Tensor names of a weight in this format."""
    shared = format.shared_dtypes("float32")
    return ("weight", *shared, *(("input_scale",) if format.static else ()))


def columns(name: str, format: WeightFormat, inputs: int) -> int:
    """Second dimension of such a tensor [outputs, ...]."""
    if name == "weight":
        return inputs * format.bits // 8
    return 1 if name == "input_scale" else format.groups(inputs, name)


def is_dequantized(path: str) -> bool:
    """Whether a parameter is used unquantized even if files store it quantized."""
    return path.removesuffix(WEIGHT).rpartition(".")[2] == DEQUANTIZED


def _pieces(piece: Piece, name: str, format: WeightFormat) -> Iterator[Piece]:
    """Pieces of a quantized tensor, derived from the plain weight's piece."""
    module = piece.name.removesuffix(WEIGHT)
    if _is_stacked(piece):
        experts, inputs, outputs = piece.shape
        shape = experts, outputs, columns(name, format, inputs)
        for expert in range(experts):
            yield Piece(f"{module}.{name}", shape, (expert,), True, (expert,))
        return
    outputs, inputs = piece.shape
    # Scales have input groups in place of inputs. Slices of a weight take all inputs, which are one
    # dimension there, so the same slice applies to scales.
    yield replace(piece, name=f"{module}.{name}", shape=(outputs, columns(name, format, inputs)))


def is_matrix(piece: Piece) -> bool:
    return len(piece.shape) == 2 and piece.transpose


def is_table(piece: Piece) -> bool:
    """Whether the piece is a table that is looked up by row, such as an embedding."""
    return len(piece.shape) == 2 and not (piece.transpose or piece.source or piece.index)


def _is_stacked(piece: Piece) -> bool:
    """Whether a tensor stacks all experts' matrices, each [inputs, outputs]."""
    return len(piece.shape) == 3 and not (piece.transpose or piece.source or piece.index)
