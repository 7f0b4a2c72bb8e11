"""Tensors of a model in saved form.

In: a ModelConfig and parameters. Out: names, dtypes, shapes and arrays. Must not know files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Set

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jengine.config import ModelConfig
from jengine.errors import CheckpointError
from jengine.models import registry
from jengine.models.parameter import named_parameters
from jengine.models.reading.hf_config import DTYPES
from jengine.models.tensors.checkpoint import Piece, take_tensor
from jengine.models.tensors.quantized_pieces import stored_formats, stored_modules
from jengine.weights.abstract import abstract_model
from jengine.weights.quantized_save import SavedTensor, saved_tensors
from jengine.weights.safetensors_file import Declared

Parameters = Mapping[str, nnx.Param]


class SavedForm:
    """Saved form of models with this config."""

    def __init__(self, config: ModelConfig, exact: Set[str]) -> None:
        """`exact`: paths of parameters that are float32 whatever the config's dtype."""
        self._dtype = np.dtype(jnp.dtype(config.dtype))
        self._pieces = registry.checkpoint_map(config)
        self._exact = {piece.name for path in exact for piece in self._pieces[path]}
        self._unwritten = registry.unwritten_prefix(config)
        # Name of a quantized tensor -> what is saved of it.
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
            for path, piece in pieces:  # mostly one parameter, which fills several tensors
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
    """Parameters that are float32 whatever the model's dtype, such as some routers."""
    narrow = abstract_model(dataclasses.replace(config, dtype="bfloat16", quantization=None))
    return {path for path, declared in named_parameters(narrow) if declared.dtype == jnp.float32}
