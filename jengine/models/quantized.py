"""Quantization of a model: the requested format, and the schemes of its modules.

In: a ModelConfig, and pieces of the plain model. Out: a ModelConfig with quantization, the one to
save it with, and modules with schemes. Must not know files.
"""

from __future__ import annotations

from dataclasses import replace

from flax import nnx

from jengine.config import ModelConfig
from jengine.errors import CheckpointError, ConfigError, UnsupportedFeature
from jengine.models.linear import Embedding, Linear, Weighted
from jengine.models.reading.quantization_write import as_compressed
from jengine.models.tensors.quantized_pieces import (
    METHODS,
    ROUTER,
    WEIGHT,
    Pieces,
    is_dequantized,
    is_matrix,
    is_table,
    stored_formats,
)
from jengine.quantization.on_load import QuantizedOnLoad
from jengine.quantization.quantized import QuantizedWeights
from jengine.quantization.quantized_table import QuantizedTable
from jengine.quantization.rounded_head import RoundedHead
from jengine.weight_formats import Quantization, StoredFormat, WeightFormat

# Formats that `quantization=` accepts.
ON_LOAD = {
    "int8": WeightFormat("int8", 64),
    "int8_per_channel_weight_only": WeightFormat("int8"),
    "int4": WeightFormat("int4", 32, zeros=True, fine_zeros=True),
    "fp8": WeightFormat("fp8", activations="fp8"),
}
# Suffix of integer formats: the output head in int8 as well.
WITH_HEAD = "_with_head"
REFUSED = {
    "bitsandbytes": "its blocks are read by a library of CUDA kernels only",
}
CHOICES = (
    f"Expected {', '.join(map(repr, ON_LOAD))}, 'int8{WITH_HEAD}' or 'int4{WITH_HEAD}' for a plain "
    "checkpoint; a quantized one says in its config.json what it is."
)
# Not quantized at load.
HEAD = "head"


def with_quantization(config: ModelConfig, name: str | None) -> ModelConfig:
    """Apply `quantization=name`: a format to quantize to at load, or that of the files. Raises
    ConfigError or UnsupportedFeature."""
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
    rounds_head = name in (f"int8{WITH_HEAD}", f"int4{WITH_HEAD}")
    if name not in ON_LOAD and not rounds_head:
        stored = name.removesuffix("_marlin") in METHODS.values()
        why = "config.json says nothing of a quantized checkpoint" if stored else "unknown"
        raise ConfigError(f"quantization={name!r}: {why}. {CHOICES}")
    rounded = StoredFormat("packed", ON_LOAD[name.removesuffix(WITH_HEAD)])
    quantization = Quantization(((("Linear",), rounded),), on_load=True, rounds_head=rounds_head)
    return replace(config, quantization=quantization)


def as_saved(quantization: Quantization, pieces: Pieces) -> Quantization | None:
    """The quantization in compressed-tensors' layout, for saving, with unquantized modules listed
    by name; `pieces` are the plain model's. None if all weights are saved plain."""
    tables = {
        piece.name.removesuffix(WEIGHT)
        for parts in pieces.values()
        for piece in parts
        if is_table(piece)
    }
    named = (
        (
            tuple(name for name in targets if name not in tables),
            replace(stored, weights=stored.weights.flat),
        )
        for targets, stored in quantization.groups
        if not stored.weights.flat.real_zeros
    )
    groups = tuple(one for one in named if one[0])
    if not groups:
        return None
    plain = replace(quantization, groups=groups, on_load=False)
    if any(stored.layout == "gpt_oss" for _, stored in groups):
        return plain
    formats = stored_formats(plain, pieces)
    if quantization.on_load:
        formats = {path: one for path, one in formats.items() if is_rounded(path)}
    kept = [
        piece.name.removesuffix(WEIGHT)
        for path, parts in pieces.items()
        if path.endswith(WEIGHT) and path.removesuffix(WEIGHT) not in formats
        for piece in parts
        if is_matrix(piece) or is_dequantized(path)
    ]
    return replace(as_compressed(plain), ignored=tuple(dict.fromkeys(kept)))


def is_rounded(path: str) -> bool:
    """Whether quantization at load applies to this `Linear`: not to routers and heads."""
    return path.rpartition(".")[2] not in (ROUTER, HEAD)


def as_rounded(model: nnx.Module) -> None:
    """Declare prepared arrays for weights that are quantized at load."""
    for _, module in _linears(model):
        if isinstance(module.scheme, QuantizedOnLoad):
            module.become_prepared(module.scheme)
    for _, module in _heads(model):
        if isinstance(module.scheme, RoundedHead):
            module.become_prepared(module.scheme)


def rounded_paths(model: nnx.Module) -> set[str]:
    """Paths of weights that are quantized at load."""
    return {path for path, one in _linears(model) if isinstance(one.scheme, QuantizedOnLoad)}


def with_schemes(model: nnx.Module, quantization: Quantization, pieces: Pieces, dtype: str) -> None:
    """Declare the quantized weights of an abstract model."""
    if quantization.on_load:
        _round_at_load(model, quantization, dtype)
        return
    formats = stored_formats(quantization, pieces)
    for path, module in _linears(model):
        if path in formats:
            _check_pairs(path, module, formats[path].weights)
            module.become_declared(QuantizedWeights(formats[path].weights, dtype))
    for path, module in nnx.iter_modules(model):
        path = ".".join(map(str, path))
        if path in formats and isinstance(module, Embedding):
            own = QuantizedWeights(formats[path].weights, dtype)
            module.become_declared(QuantizedTable(own))


def _round_at_load(model: nnx.Module, quantization: Quantization, dtype: str) -> None:
    [(_, stored)] = quantization.groups
    for path, module in _linears(model):
        if is_rounded(path):
            _check_pairs(path, module, stored.weights)
            module.become_declared(QuantizedOnLoad(stored.weights, dtype))
    if quantization.rounds_head:
        for _, module in _heads(model):
            module.become_declared(RoundedHead(dtype))


def _linears(model: nnx.Module) -> list[tuple[str, Linear]]:
    return [
        (".".join(map(str, path)), module)
        for path, module in nnx.iter_modules(model)
        if isinstance(module, Linear)
    ]


def _heads(model: nnx.Module) -> list[tuple[str, Weighted]]:
    """The output head, or the tied embedding."""
    return [
        (".".join(map(str, path)), module)
        for path, module in nnx.iter_modules(model)
        if (isinstance(module, Linear) and path and path[-1] == HEAD)
        or (isinstance(module, Embedding) and module.is_head)
    ]


def _check_pairs(path: str, module: Linear, format: WeightFormat) -> None:
    if format.bits == 4 and module.shape.inputs[-1] % 2:
        raise CheckpointError(
            f"{path}: {format.values} stores pairs of inputs, and it has {module.shape.inputs}."
        )
