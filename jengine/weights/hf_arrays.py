"""In-memory arrays under Hugging Face names, read like a checkpoint.

In: flat or nested mappings of numpy, JAX or DLPack arrays. Out: parameters, after all names and
shapes were checked. Layouts differ from jengine's, so every array is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from jengine.config import ModelConfig
from jengine.errors import CheckpointError
from jengine.models import registry
from jengine.models.reading.hf_config import DTYPES
from jengine.weights.abstract import Place
from jengine.weights.live import fitting_arrays, named_arrays
from jengine.weights.partial_updates import GIVEN, Gathered, any_array
from jengine.weights.safetensors_io import check_tensors, present, stream
from jengine.weights.stored_parameter import ReadableTensor
from jengine.weights.tree_tables import hint


@dataclass(frozen=True)
class GivenTensor:
    """An array under its checkpoint name."""

    name: str
    array: Any
    file: Path = GIVEN

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def size(self) -> int:
        return int(self.array.nbytes)

    def read(self) -> np.ndarray:
        """The array on the host, gathered from its shards."""
        return np.asarray(self.array)


def given_tensors(params: Any) -> dict[str, GivenTensor]:
    """Arrays by dotted name. Raises CheckpointError for anything else."""
    tensors = {}
    for name, one in named_arrays(params).items():
        where = params.origin[name] if isinstance(params, Gathered) else GIVEN
        tensors[name] = GivenTensor(name, as_array(name, one, where), where)
    return tensors


def as_array(name: str, given: Any, where: Path = GIVEN) -> Any:
    """Convert to a numpy or JAX array. Raises CheckpointError for other objects and dtypes."""
    array = any_array(name, given, where)
    if np.dtype(array.dtype).name not in DTYPES:
        raise CheckpointError(
            f"{where}: {name!r} is {array.dtype}, expected one of {', '.join(DTYPES)}."
        )
    return array


def hf_parameters(
    config: ModelConfig, model: nnx.Module, given: Mapping[str, ReadableTensor], place: Place | None
) -> dict[str, jax.Array]:
    """Every declared parameter by path, from arrays under Hugging Face names."""
    tensors = registry.full_names(config, given)
    pieces = present(registry.plain_pieces(config), tensors)
    wanted = [piece.name for found in pieces.values() for piece in found]
    if given and not any(name in tensors for name in wanted):
        raise CheckpointError(
            f"{GIVEN} have none of the names of this model's checkpoints, such as {wanted[0]!r}."
            f"{hint(list(given))}"
        )
    check_tensors(GIVEN, tensors, pieces, registry.ignored_tensors(config))
    return dict(stream(tensors, model, pieces, place))


def are_hf_names(config: ModelConfig, names: Iterable[str]) -> bool:
    """Whether more of the names are Hugging Face tensors than parameter paths."""
    pieces = registry.plain_pieces(config)
    known = {piece.name for found in pieces.values() for piece in found}
    full = registry.full_names(config, dict.fromkeys(names))
    return len(known & full.keys()) > len(pieces.keys() & set(names))


def given_parameters(
    config: ModelConfig, model: nnx.Module, params: Any, place: Place
) -> dict[str, jax.Array]:
    """Parameters from a module, a state, or a tree under parameter paths or Hugging Face names."""
    is_tree = isinstance(params, Mapping) and not isinstance(params, nnx.State)
    if is_tree and are_hf_names(config, named_arrays(params)):
        return hf_parameters(config, model, given_tensors(params), place)
    origin = params.origin if isinstance(params, Gathered) else {}
    return fitting_arrays(model, params, place, origin)
