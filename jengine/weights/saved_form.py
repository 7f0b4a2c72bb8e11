"""Tensors of a model in saved form.

In: a ModelConfig and parameters. Out: names, dtypes, shapes and arrays. Must not know files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import NamedTuple

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from flax import nnx

from jengine.config import ModelConfig
from jengine.errors import CheckpointError
from jengine.models import registry
from jengine.models.parameter import named_parameters
from jengine.models.reading.hf_config import DTYPES
from jengine.models.tensors.checkpoint import Piece, take_tensor
from jengine.models.tensors.quantized_pieces import QuantizedModule, stored_formats, stored_modules
from jengine.weights import packed_values as packed
from jengine.weights.abstract import abstract_model
from jengine.weights.safetensors_file import Declared

Parameters = Mapping[str, nnx.Param]


class SavedForm:
    """Names, dtypes and order of the tensors that a model with this config is saved as."""

    def __init__(self, config: ModelConfig, exact: Set[str]) -> None:
        """`exact`: paths of parameters that stay float32 in any dtype."""
        self._dtype = np.dtype(jnp.dtype(config.dtype))
        self._pieces = registry.checkpoint_map(config)
        self._exact = {piece.name for path in exact for piece in self._pieces[path]}
        self._unwritten = registry.unwritten_prefix(config)
        # Declared tensor's name -> the tensors saved from it.
        self._quantized: dict[str, list[SavedTensor]] = {}
        if config.quantization is not None:
            modules = stored_modules(config.quantization, registry.plain_pieces(config))
            self._quantized = saved_tensors(modules)

    def declared(self) -> list[Declared]:
        """Name, dtype and shape of each tensor."""
        return [
            (saved.name.removeprefix(self._unwritten), saved.dtype, saved.shape)
            for name, pieces in self._by_name().items()
            for saved in self._quantized.get(name) or [self._plain(pieces[0][1])]
        ]

    def arrays(self, parameters: Parameters) -> Iterator[np.ndarray]:
        """Tensors in the order of `declared`, computed lazily."""
        last, array = "", np.empty(0)
        for name, pieces in self._by_name().items():
            parts = []
            for path, piece in pieces:  # usually one parameter, which may fill several tensors
                if path != last:
                    last, array = path, np.asarray(parameters[path].get_value())
                parts.append((array, piece))
            tensor = take_tensor(parts)
            if name in self._quantized:
                yield from (saved.encode(tensor) for saved in self._quantized[name])
            else:
                yield tensor

    def _by_name(self) -> dict[str, list[tuple[str, Piece]]]:
        """Tensors in order, each with its pieces and parameter paths."""
        named: dict[str, list[tuple[str, Piece]]] = {}
        for path, found in self._pieces.items():
            for piece in found:
                named.setdefault(piece.name, []).append((path, piece))
        return named

    def _plain(self, piece: Piece) -> SavedTensor:
        dtype = np.dtype(np.float32) if piece.name in self._exact else self._dtype
        return SavedTensor(piece.name, dtype, piece.shape, lambda values: values)


def plain_dtype(parameters: Parameters, config: ModelConfig, exact: Set[str]) -> str:
    """Dtype of all parameters that are neither quantized nor `exact`."""
    paths = set(registry.checkpoint_map(config)) - exact
    if config.quantization is not None:
        small = stored_formats(config.quantization, registry.plain_pieces(config))
        paths = {path for path in paths if path.rpartition(".")[0] not in small}
    dtypes = {str(parameters[path].dtype) for path in paths}
    if len(dtypes) > 1 or not dtypes <= set(DTYPES):
        raise CheckpointError(f"Parameters of {sorted(dtypes)}, expected one of {list(DTYPES)}.")
    return dtypes.pop()


def exact_paths(config: ModelConfig) -> set[str]:
    """Parameters that stay float32 in any dtype, such as some routers."""
    narrow = abstract_model(dataclasses.replace(config, dtype="bfloat16", quantization=None))
    return {path for path, declared in named_parameters(narrow) if declared.dtype == jnp.float32}


Encode = Callable[[np.ndarray], np.ndarray]
WORD, BYTE = np.dtype(np.int32), np.dtype(np.uint8)
FLOAT = np.dtype(np.float32)


class SavedTensor(NamedTuple):
    """A tensor of a file, encoded from one declared array."""

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
