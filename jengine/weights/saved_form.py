"""The tensors of a model as its file holds them.

In: a ModelConfig, and a model's parameters. Out: names, types, shapes and arrays. Must not know
files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jengine.config import ModelConfig
from jengine.errors import CheckpointError
from jengine.models import registry
from jengine.models.checkpoint import Piece, take_tensors
from jengine.models.hf_config import DTYPES
from jengine.models.parameter import named_parameters
from jengine.models.quantized import stored_formats, stored_modules
from jengine.weights.abstract import abstract_model
from jengine.weights.quantized_save import SavedTensor, saved_tensors
from jengine.weights.safetensors_file import Declared

Parameters = Mapping[str, nnx.Param]


class SavedForm:
    """What is saved of a model of this config."""

    def __init__(self, config: ModelConfig) -> None:
        self._dtype = np.dtype(jnp.dtype(config.dtype))
        self._pieces = registry.checkpoint_map(config)
        self._exact = {piece.name for path in exact_paths(config) for piece in self._pieces[path]}
        # Name of a quantized tensor -> what is saved of it.
        self._quantized: dict[str, list[SavedTensor]] = {}
        if config.quantization is not None:
            modules = stored_modules(config.quantization, registry.plain_pieces(config))
            self._quantized = saved_tensors(modules)

    def declared(self) -> list[Declared]:
        """Name, type and shape of each tensor."""
        named = {piece.name: piece for found in self._pieces.values() for piece in found}
        return [
            (saved.name, saved.dtype, saved.shape)
            for piece in named.values()
            for saved in self._quantized.get(piece.name) or [self._plain(piece)]
        ]

    def arrays(self, parameters: Parameters) -> Iterator[np.ndarray]:
        """The tensors in the same order, made as they are asked for."""
        for path, found in self._pieces.items():
            names = dict.fromkeys(piece.name for piece in found)
            arrays = take_tensors(np.asarray(parameters[path].get_value()), found)
            for name, array in zip(names, arrays, strict=True):
                if name in self._quantized:
                    yield from (saved.encode(array) for saved in self._quantized[name])
                else:
                    yield array

    def _plain(self, piece: Piece) -> SavedTensor:
        dtype = np.dtype(np.float32) if piece.name in self._exact else self._dtype
        return SavedTensor(piece.name, dtype, piece.shape, lambda values: values)


def plain_dtype(parameters: Parameters, config: ModelConfig) -> str:
    """The dtype of all parameters that are neither quantized nor float32 in every model."""
    paths = set(registry.checkpoint_map(config)) - exact_paths(config)
    if config.quantization is not None:
        small = stored_formats(config.quantization, registry.plain_pieces(config))
        paths = {path for path in paths if path.rpartition(".")[0] not in small}
    dtypes = {str(parameters[path].dtype) for path in paths}
    if len(dtypes) > 1 or not dtypes <= set(DTYPES):
        raise CheckpointError(f"Parameters of {sorted(dtypes)}, expected one of {list(DTYPES)}.")
    return dtypes.pop()


def exact_paths(config: ModelConfig) -> set[str]:
    """The parameters that are float32 whatever the model's dtype is, as of some routers."""
    narrow = abstract_model(dataclasses.replace(config, dtype="bfloat16", quantization=None))
    return {path for path, declared in named_parameters(narrow) if declared.dtype == jnp.float32}
