"""Reads a folder that PEFT wrote into an Adapter, for one base model.

In: a folder and a ModelConfig. Out: an Adapter, or a CheckpointError that names the tensor. A
tensor is `base_model.model.MODULE.lora_A.weight` [rank, inputs] or `lora_B.weight` [outputs, rank].
Must not know devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jengine.config import ModelConfig
from jengine.errors import CheckpointError
from jengine.lora.adapter import WEIGHT, Adapter, LowRank
from jengine.lora.peft_config import AdapterConfig, read_adapter_config
from jengine.models import registry
from jengine.models.checkpoint import Piece
from jengine.models.linear import Linear
from jengine.quantization.scheme import WeightShape
from jengine.weights.abstract import abstract_model
from jengine.weights.generation_config import read_json
from jengine.weights.prepared import weighted
from jengine.weights.safetensors_file import READABLE, StoredTensor, read_header

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
DOWN, UP = ".lora_A.weight", ".lora_B.weight"
FIRST_SHOWN = 5


class Place(NamedTuple):
    """Where a module of the checkpoint is in our model."""

    path: str  # of a Linear
    shape: WeightShape
    pieces: tuple[Piece, ...]  # of the module, as parts of the Linear's weight


class Matrices(NamedTuple):
    """A module's matrices, the second one scaled."""

    down: np.ndarray  # f32 [rank, inputs]
    up: np.ndarray  # f32 [outputs, rank]


def read_adapter(folder: Path | str, config: ModelConfig, *, max_rank: int) -> Adapter:
    """The adapter in a folder, checked against the base model of `config`."""
    folder = Path(folder)
    file = folder / WEIGHTS_FILE
    if not file.is_file():
        found = ", ".join(sorted(one.name for one in folder.iterdir())) if folder.is_dir() else ""
        raise CheckpointError(f"{folder}: expected {WEIGHTS_FILE}, found {found or 'no folder'}.")
    settings = read_adapter_config(read_json(folder / CONFIG_FILE), CONFIG_FILE)
    tensors, places = read_header(file), places_of(config)
    modules = sorted({_module_of(file, name) for name in tensors})
    unknown = [name for name in modules if name not in places]
    if unknown:
        raise CheckpointError(
            f"{file}: modules that an adapter cannot change here: "
            f"{', '.join(unknown[:FIRST_SHOWN])}. Linear layers can be adapted, and neither"
            " embeddings nor experts."
        )
    read = {
        module: _read_module(file, module, tensors, settings, places[module], max_rank)
        for module in modules
    }
    by_path: dict[str, list[str]] = {}
    for module in modules:
        by_path.setdefault(places[module].path, []).append(module)
    parts = {
        path: _joined([(places[one], read[one]) for one in own]) for path, own in by_path.items()
    }
    return Adapter(max((len(one.down) for one in read.values()), default=0), parts)


def places_of(config: ModelConfig) -> dict[str, Place]:
    """Modules of the checkpoint that an adapter may change."""
    found: dict[str, Place] = {}
    linears = weighted(abstract_model(config))
    for path, pieces in registry.plain_pieces(config).items():
        module = linears.get(path.removesuffix(WEIGHT))
        if not path.endswith(WEIGHT) or not isinstance(module, Linear) or module.shape.groups:
            continue
        for name in dict.fromkeys(piece.name for piece in pieces):
            own = tuple(piece for piece in pieces if piece.name == name)
            place = Place(path.removesuffix(WEIGHT), module.shape, own)
            found[name.removesuffix(WEIGHT)] = place
    return found


def _module_of(file: Path, name: str) -> str:
    """The module of a tensor."""
    if name.startswith(PREFIX):
        for ending in (DOWN, UP):
            if name.endswith(ending):
                return name.removeprefix(PREFIX).removesuffix(ending)
    raise CheckpointError(
        f"{file}: {name!r} is no matrix of LoRA; expected {PREFIX}MODULE{DOWN} or {UP}."
    )


def _read_module(
    file: Path,
    module: str,
    tensors: Mapping[str, StoredTensor],
    settings: AdapterConfig,
    place: Place,
    max_rank: int,
) -> Matrices:
    rank = settings.rank_of(module)
    if rank > max_rank:
        raise CheckpointError(
            f"{file}: {module!r} has rank {rank}, expected at most max_lora_rank={max_rank}."
        )
    piece = place.pieces[0]
    inputs, outputs = piece.shape[::-1] if piece.transpose else piece.shape
    down = _read_matrix(file, tensors, f"{PREFIX}{module}{DOWN}", (rank, inputs))
    up = _read_matrix(file, tensors, f"{PREFIX}{module}{UP}", (outputs, rank))
    return Matrices(down, up * np.float32(settings.scale_of(module)))


def _read_matrix(
    file: Path, tensors: Mapping[str, StoredTensor], name: str, shape: tuple[int, int]
) -> np.ndarray:
    if name not in tensors:
        raise CheckpointError(f"{file}: tensor missing: {name!r}.")
    tensor = tensors[name]
    if tensor.shape != shape or tensor.dtype not in READABLE:
        raise CheckpointError(
            f"{file}: {name!r} is {tensor.dtype} {tensor.shape}, expected"
            f" {' or '.join(READABLE)} {shape}."
        )
    array = np.asarray(tensor.read(), np.float32)
    if not np.isfinite(array).all():
        raise CheckpointError(f"{file}: {name!r} holds NaN or infinity.")
    return array


def _joined(modules: Sequence[tuple[Place, Matrices]]) -> LowRank:
    """The matrices of all modules that share a weight."""
    shape = modules[0][0].shape
    rank = sum(len(matrices.down) for _, matrices in modules)
    up = np.zeros((rank, *shape.outputs), np.float32)
    first = 0
    for place, matrices in modules:
        last = first + len(matrices.down)
        for where, rows in _outputs(place, matrices):
            part = up[first:last][(slice(None), *where)]
            part[...] = rows.T.reshape(part.shape)
        first = last
    return LowRank(np.concatenate([one.down for _, one in modules]).T.copy(), up)


def _outputs(place: Place, matrices: Matrices) -> Iterator[tuple[tuple[slice, ...], np.ndarray]]:
    """The outputs of our weight, and the rows of a module's second matrix that belong to them."""
    for piece in place.pieces:
        where = tuple(piece.place(place.shape.shape)[len(place.shape.inputs) :])
        source = piece.source if piece.transpose else piece.source[1:]
        yield where, matrices.up[source or slice(None)]
