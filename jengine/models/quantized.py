"""A model whose weights are quantized: which modules are, their schemes, and their tensors.

In: a ModelConfig, and the pieces of the plain model. Out: schemes of modules, pieces of quantized
tensors. Must not know files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from flax import nnx

from jengine.config import ModelConfig
from jengine.errors import CheckpointError, ConfigError, UnsupportedFeature
from jengine.models.checkpoint import Piece
from jengine.models.linear import Linear
from jengine.models.quantization_write import as_compressed
from jengine.quantization.on_load import QuantizedOnLoad
from jengine.quantization.quantized import QuantizedWeights
from jengine.weight_formats import Layout, Quantization, StoredFormat, WeightFormat

Pieces = Mapping[str, tuple[Piece, ...]]
WEIGHT = ".weight"
# What `quantization=` asks for.
ON_LOAD = {
    "int8": WeightFormat("int8"),
    "int8_per_channel_weight_only": WeightFormat("int8"),
    "int4": WeightFormat("int4", 64),
    "fp8": WeightFormat("fp8", activations="fp8"),
}
METHODS: dict[Layout, str] = {
    "int": "compressed-tensors",
    "float": "compressed-tensors",
    "packed": "compressed-tensors",
    "mxfp4": "compressed-tensors",
    "gptq": "gptq",
    "awq": "awq",
    "fp8": "fp8",
}
REFUSED = {
    "bitsandbytes": "its blocks are read by a library of CUDA kernels only",
    "gguf": "files of GGUF are not read yet",
}
CHOICES = (
    f"Expected {', '.join(map(repr, ON_LOAD))} for a plain checkpoint; a quantized one says in "
    "its config.json what it is."
)
# Never rounded at load, and routers neither by methods that do not list all modules.
ROUTER, HEAD = "router", "head"
ROUTERS = ("compressed-tensors",)


class QuantizedModule(NamedTuple):
    """A module of the checkpoint with a quantized weight [outputs, inputs]."""

    name: str
    outputs: int
    inputs: int
    stored: StoredFormat


def with_quantization(config: ModelConfig, name: str | None) -> ModelConfig:
    """The config for `quantization=name`: rounded at load, or the format that files have."""
    if name is None:
        return config
    if name in REFUSED:
        raise UnsupportedFeature(f"quantization={name!r}: {REFUSED[name]}. {CHOICES}")
    if config.quantization is not None:
        found = {METHODS[stored.layout] for _, stored in config.quantization.groups}
        if name.removesuffix("_marlin") not in found:
            raise ConfigError(
                f"quantization={name!r}: the checkpoint is quantized already, as"
                f" {' and '.join(sorted(found))}. Leave quantization out."
            )
        return config
    if name not in ON_LOAD:
        stored = name.removesuffix("_marlin") in METHODS.values()
        why = "config.json says nothing of a quantized checkpoint" if stored else "unknown"
        raise ConfigError(f"quantization={name!r}: {why}. {CHOICES}")
    rounded = StoredFormat("packed", ON_LOAD[name])
    return replace(config, quantization=Quantization(((("Linear",), rounded),), on_load=True))


def as_saved(quantization: Quantization, pieces: Pieces) -> Quantization:
    """The same weights in a file of compressed-tensors; these are the plain model's pieces. All
    modules that stay plain are named there."""
    plain = replace(quantization, on_load=False)
    formats = stored_formats(plain, pieces)
    if quantization.on_load:
        formats = {path: one for path, one in formats.items() if is_rounded(path)}
    kept = [
        piece.name.removesuffix(WEIGHT)
        for path, parts in pieces.items()
        if path.endswith(WEIGHT) and path.removesuffix(WEIGHT) not in formats
        for piece in parts
        if _is_matrix(piece)
    ]
    return replace(as_compressed(plain), ignored=tuple(dict.fromkeys(kept)))


def is_rounded(path: str) -> bool:
    """Whether a `Linear` is rounded at load."""
    return path.rpartition(".")[2] not in (ROUTER, HEAD)


def rounded_paths(model: nnx.Module) -> set[str]:
    """The paths of weights that are rounded at load."""
    return {path for path, one in _linears(model) if isinstance(one.scheme, QuantizedOnLoad)}


def stored_formats(quantization: Quantization, pieces: Pieces) -> dict[str, StoredFormat]:
    """Path of a `Linear` of ours -> the format of the modules that it is made of."""
    found: dict[str, StoredFormat] = {}
    for path, parts in pieces.items():
        if not path.endswith(WEIGHT) or not all(_is_matrix(piece) for piece in parts):
            continue
        names = list(dict.fromkeys(piece.name.removesuffix(WEIGHT) for piece in parts))
        formats = [quantization.format_of(name) for name in names]
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
    """The checkpoint's quantized modules, whose plain pieces these are."""
    seen: set[str] = set()
    for path, stored in stored_formats(quantization, pieces).items():
        for piece in pieces[path + WEIGHT]:
            name = piece.name.removesuffix(WEIGHT)
            if name not in seen:
                seen.add(name)
                outputs, inputs = piece.shape
                yield QuantizedModule(name, outputs, inputs, stored)


def quantized_pieces(quantization: Quantization, pieces: Pieces) -> dict[str, tuple[Piece, ...]]:
    """The pieces of the quantized model, whose tensors have the names of `QuantizedWeights`."""
    formats = {} if quantization.on_load else stored_formats(quantization, pieces)
    found: dict[str, tuple[Piece, ...]] = {}
    for path, parts in pieces.items():
        stored = formats.get(path.removesuffix(WEIGHT)) if path.endswith(WEIGHT) else None
        if stored is None:
            found[path] = parts
            continue
        module = path.removesuffix(WEIGHT)
        for name in tensor_names(stored.weights):
            found[f"{module}.{name}"] = tuple(_piece(one, name, stored.weights) for one in parts)
    return found


def tensor_names(format: WeightFormat) -> tuple[str, ...]:
    """The tensors of a weight of this format, as `QuantizedWeights` names them."""
    zero = ("zero",) if format.zeros else ()
    return ("weight", "scale", *zero, *(("input_scale",) if format.static else ()))


def columns(name: str, format: WeightFormat, inputs: int) -> int:
    """The second dimension of such a tensor [outputs, ...]."""
    if name == "weight":
        return inputs * format.bits // 8
    return 1 if name == "input_scale" else format.groups(inputs)


def with_schemes(model: nnx.Module, quantization: Quantization, pieces: Pieces, dtype: str) -> None:
    """Declare the quantized weights of an (abstract) model."""
    if quantization.on_load:
        _round_at_load(model, quantization, dtype)
        return
    formats = stored_formats(quantization, pieces)
    for path, module in _linears(model):
        if path in formats:
            _check_pairs(path, module, formats[path].weights)
            module.become_declared(QuantizedWeights(formats[path].weights, dtype))


def _round_at_load(model: nnx.Module, quantization: Quantization, dtype: str) -> None:
    [(_, stored)] = quantization.groups
    for path, module in _linears(model):
        if is_rounded(path):
            _check_pairs(path, module, stored.weights)
            module.become_declared(QuantizedOnLoad(stored.weights, dtype))


def _linears(model: nnx.Module) -> list[tuple[str, Linear]]:
    return [
        (".".join(map(str, path)), module)
        for path, module in nnx.iter_modules(model)
        if isinstance(module, Linear)
    ]


def _check_pairs(path: str, module: Linear, format: WeightFormat) -> None:
    if format.bits == 4 and module.shape.inputs[-1] % 2:
        raise CheckpointError(
            f"{path}: {format.values} stores pairs of inputs, and it has {module.shape.inputs}."
        )


def _piece(piece: Piece, name: str, format: WeightFormat) -> Piece:
    """The piece of a quantized tensor, out of that of the plain weight."""
    outputs, inputs = piece.shape
    module = piece.name.removesuffix(WEIGHT)
    # Groups of inputs stand where the inputs do. A slice of a weight takes all its inputs, which
    # are one dimension there, so it is a slice of the scales too.
    return replace(piece, name=f"{module}.{name}", shape=(outputs, columns(name, format, inputs)))


def _is_matrix(piece: Piece) -> bool:
    return len(piece.shape) == 2 and piece.transpose
