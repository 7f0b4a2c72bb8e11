"""Reads a PEFT folder into an Adapter for one base model.

In: a folder and a ModelConfig. Out: an Adapter, or a CheckpointError that names the tensor. Tensors
are `base_model.model.MODULE.lora_A.weight` [rank, inputs] and `lora_B.weight` [outputs, rank]. Must
not know devices.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jengine.config import ModelConfig
from jengine.errors import CheckpointError
from jengine.lora.adapter import WEIGHT, Adapter, LowRank, in_group
from jengine.lora.peft_config import PeftConfig, read_adapter_config
from jengine.lora.stacked_modules import StackedModule, stacked_modules
from jengine.models import registry
from jengine.models.linear import Embedding, Linear
from jengine.models.tensors.checkpoint import Piece
from jengine.quantization.scheme import WeightShape
from jengine.weights.abstract import abstract_model
from jengine.weights.generation_config import read_json
from jengine.weights.prepared import weighted
from jengine.weights.safetensors_file import READABLE, StoredTensor, read_header

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
DOWN, UP = ".lora_A.weight", ".lora_B.weight"
TABLE_DOWN, TABLE_UP = ".lora_embedding_A", ".lora_embedding_B"  # of the input embedding
EMBEDDING = "embed"  # path of the input embedding
TOWER = "vision."  # path prefix of the vision tower
FIRST_SHOWN = 5


class Place(NamedTuple):
    """Maps a checkpoint module to a jengine weight, or a part of one."""

    path: str  # of a `Linear`, or of the input embedding
    shape: WeightShape
    pieces: tuple[Piece, ...]  # the module's tensors, as parts of the weight
    is_table: bool = False  # an embedding, whose inputs are token ids
    group: int | None = None  # index of the matrix in a grouped `Linear`, such as an expert

    @property
    def key(self) -> str:
        """Path of the matrix, with its group."""
        return in_group(self.path, self.group)

    @property
    def inputs(self) -> tuple[int, ...]:
        """Input dimensions of the low-rank update; swapped for an embedding table."""
        return self.shape.outputs if self.is_table else self.shape.inputs

    @property
    def outputs(self) -> tuple[int, ...]:
        """Output dimensions of the low-rank update; swapped for an embedding table."""
        return self.shape.inputs if self.is_table else self.shape.outputs

    @property
    def names(self) -> tuple[str, str]:
        """Suffixes of the module's A and B tensors."""
        return (TABLE_DOWN, TABLE_UP) if self.is_table else (DOWN, UP)

    @property
    def matrix(self) -> tuple[int, int]:
        """The module's (inputs, outputs)."""
        if self.is_table:
            return self.inputs[0], self.outputs[0]
        piece = self.pieces[0]
        inputs, outputs = piece.shape[::-1] if piece.transpose else piece.shape
        return inputs, outputs


# Checkpoint module -> the jengine weights that it fills, usually one.
Places = Mapping[str, tuple[Place, ...]]


class Matrices(NamedTuple):
    """A module's A and B matrices, with the scale folded into B."""

    down: np.ndarray  # f32 [rank, inputs]
    up: np.ndarray  # f32 [outputs, rank]


def read_adapter(
    folder: Path | str,
    config: ModelConfig,
    *,
    max_rank: int,
    places: Places | None = None,
) -> Adapter:
    """Read a PEFT folder, checked against the base model. `places`: the adaptable modules; None:
    all. Raises CheckpointError."""
    folder = Path(folder)
    file = folder / WEIGHTS_FILE
    if not file.is_file():
        found = ", ".join(sorted(one.name for one in folder.iterdir())) if folder.is_dir() else ""
        raise CheckpointError(f"{folder}: expected {WEIGHTS_FILE}, found {found or 'no folder'}.")
    settings = read_adapter_config(read_json(folder / CONFIG_FILE), CONFIG_FILE)
    places = places_of(config) if places is None else places
    tensors = by_file_names(read_header(file), places)
    modules = sorted({_module_of(file, name) for name in tensors})
    stacked = stacked_modules(places, modules, settings.parameters, str(file))
    unknown = [name for name in modules if name not in places and name not in stacked]
    if unknown:
        raise CheckpointError(
            f"{file}: modules that an adapter cannot change here: "
            f"{', '.join(unknown[:FIRST_SHOWN])}. Linear layers, experts and the input embedding "
            "can be adapted."
        )
    source = Source(file, tensors, settings, max_rank)
    read: dict[str, Matrices] = {}
    for module in modules:
        if module in stacked:
            read.update(_read_stacked(source, module, stacked[module], places))
        else:
            read[module] = _read_module(source, module, places[module][0])
    rank = max((len(one.down) for one in read.values()), default=0)
    return Adapter(rank, joined_parts(places, read))


# transformers 5's name of MoE blocks, and the one in checkpoints of transformers 4.
RENAMED = (".mlp.", ".block_sparse_moe.")
# Prefixes of a vision-language model's decoder and of its output head; they vary by transformers
# version.
DECODER = re.compile(
    r"^(?:model\.language_model|language_model\.model|model)\.(?=layers\.|embed_tokens)"
)
HEAD = re.compile(r"^(?:language_model\.)?(?=lm_head)")


def by_file_names(
    tensors: Mapping[str, StoredTensor], places: Places
) -> Mapping[str, StoredTensor]:
    """Rename an adapter's tensors to the module names of the base model's checkpoint."""
    now, older = RENAMED
    if any(older in name for name in places):
        tensors = {name.replace(now, older): tensor for name, tensor in tensors.items()}
    for pattern in (DECODER, HEAD):
        own = next((found[0] for name in places if (found := pattern.match(name))), None)
        if own is not None:
            tensors = {_with_prefix(name, pattern, own): one for name, one in tensors.items()}
    return tensors


def _with_prefix(name: str, pattern: re.Pattern[str], prefix: str) -> str:
    """Replace the prefix that `pattern` matches in a tensor's module name."""
    if not name.startswith(PREFIX):
        return name
    return PREFIX + pattern.sub(prefix, name.removeprefix(PREFIX))


def joined_parts(places: Places, read: Mapping[str, Matrices]) -> dict[str, LowRank]:
    """Fuse modules' matrices: one update per path of a `Linear`."""
    shared: dict[str, list[tuple[Place, Matrices | None]]] = {}
    for module, own in places.items():
        for place in own:
            shared.setdefault(place.key, []).append((place, read.get(module)))
    return {
        path: _joined(modules)
        for path, modules in shared.items()
        if any(matrices is not None for _, matrices in modules)
    }


def by_path(places: Places) -> dict[str, list[Place]]:
    """Modules fused into each matrix, in order, by `Place.key`."""
    found: dict[str, list[Place]] = {}
    for own in places.values():
        for place in own:
            found.setdefault(place.key, []).append(place)
    return found


def owners_of(places: Sequence[Place]) -> np.ndarray:
    """Index of the fused module that makes each output, i32 [*outputs]."""
    owners = np.zeros(places[0].outputs, np.int32)
    if places[0].is_table:
        return owners
    for number, place in enumerate(places):
        for where in _parts(place):
            owners[where] = number
    return owners


def places_of(config: ModelConfig) -> dict[str, tuple[Place, ...]]:
    """Adaptable checkpoint modules, and where each is in jengine's weights. Excludes vision towers,
    which run before steps, in programs without adapters."""
    found: dict[str, tuple[Place, ...]] = {}
    linears = weighted(abstract_model(config))
    for path, pieces in registry.plain_pieces(config).items():
        short = path.removesuffix(WEIGHT)
        module = linears.get(short)
        is_table = isinstance(module, Embedding) and short == EMBEDDING
        if module is None or not path.endswith(WEIGHT) or path.startswith(TOWER):
            continue
        if not (isinstance(module, Linear) or is_table):
            continue
        for group, own in _by_group(pieces, module.shape.groups):
            for name in dict.fromkeys(piece.name for piece in own):
                named = name.removesuffix(WEIGHT)
                alike = tuple(piece for piece in own if piece.name == name)
                place = Place(short, module.shape, alike, is_table, group)
                found[named] = (*found.get(named, ()), place)
    return found


def _by_group(
    pieces: Sequence[Piece], groups: int | None
) -> Iterator[tuple[int | None, Sequence[Piece]]]:
    """Split a weight's pieces by matrix: (group, pieces)."""
    if groups is None:
        yield None, pieces
        return
    found: dict[int, list[Piece]] = {group: [] for group in range(groups)}
    for piece in pieces:
        for group in piece.groups(groups):
            found[group].append(piece.of_group(group))
    yield from found.items()


def _module_of(file: Path, name: str) -> str:
    """Module name in a tensor name. Raises CheckpointError for tensors that are not LoRA
    matrices."""
    if name.startswith(PREFIX):
        for ending in (DOWN, UP, TABLE_DOWN, TABLE_UP):
            if name.endswith(ending):
                return name.removeprefix(PREFIX).removesuffix(ending)
    raise CheckpointError(
        f"{file}: {name!r} is no matrix of LoRA; expected {PREFIX}MODULE{DOWN} or {UP}."
    )


class Source(NamedTuple):
    """An adapter's opened files."""

    file: Path
    tensors: Mapping[str, StoredTensor]
    settings: PeftConfig
    max_rank: int

    def rank_of(self, module: str) -> int:
        """A module's rank. Raises CheckpointError above the limit."""
        rank = self.settings.rank_of(module)
        if rank > self.max_rank:
            raise CheckpointError(
                f"{self.file}: {module!r} has rank {rank}, expected at most "
                f"max_lora_rank={self.max_rank}."
            )
        return rank

    def pair(
        self, module: str, names: tuple[str, str], down: tuple[int, int], up: tuple[int, int]
    ) -> Matrices:
        """A module's A and B of these shapes, unscaled."""
        first, second = (f"{PREFIX}{module}{ending}" for ending in names)
        return Matrices(
            _read_matrix(self.file, self.tensors, first, down),
            _read_matrix(self.file, self.tensors, second, up),
        )


def _read_module(source: Source, module: str, place: Place) -> Matrices:
    rank, (inputs, outputs) = source.rank_of(module), place.matrix
    down, up = source.pair(module, place.names, (rank, inputs), (outputs, rank))
    return Matrices(down, up * np.float32(source.settings.scale_of(module)))


def _read_stacked(
    source: Source, module: str, stack: StackedModule, places: Places
) -> dict[str, Matrices]:
    """Split PEFT's stacked matrices of all experts into per-expert modules."""
    rank, count = source.rank_of(stack.parameter), len(stack.experts)
    sizes = [places[name][0].matrix for name in stack.experts[0]]
    inputs, outputs = sizes[0][0], sum(size for _, size in sizes)
    shapes = (count * rank, inputs), (outputs, rank * count)
    down, up = source.pair(module, (DOWN, UP), *shapes)
    by_expert = up.reshape(outputs, rank, count) * np.float32(
        source.settings.scale_of(stack.parameter)
    )
    ends = np.cumsum([size for _, size in sizes])
    return {
        name: Matrices(down[expert * rank : (expert + 1) * rank], part)
        for expert, names in enumerate(stack.experts)
        for name, part in zip(names, np.split(by_expert[..., expert], ends[:-1]), strict=True)
    }


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


def _joined(modules: Sequence[tuple[Place, Matrices | None]]) -> LowRank:
    """Concatenate the ranks of a fused weight's modules; modules without matrices have rank 0."""
    shape = modules[0][0].shape
    if modules[0][0].is_table:
        ((_, own),) = modules
        assert own is not None, "a table has one module"
        return LowRank(own.down.T.copy(), own.up.T.copy(), (len(own.down),))
    ranks = tuple(0 if matrices is None else len(matrices.down) for _, matrices in modules)
    up = np.zeros((sum(ranks), *shape.outputs), np.float32)
    first = 0
    for place, matrices in modules:
        if matrices is None:
            continue
        last = first + len(matrices.down)
        for where, rows in _outputs(place, matrices):
            part = up[first:last][(slice(None), *where)]
            part[...] = rows.reshape(part.shape)
        first = last
    down = [matrices.down for _, matrices in modules if matrices is not None]
    return LowRank(np.concatenate(down).T.copy(), up, ranks)


def _parts(place: Place) -> Iterator[tuple[slice, ...]]:
    """Slices of the weight's outputs that a module fills."""
    for piece in place.pieces:
        inputs, outputs = place.shape.inputs, place.shape.outputs
        yield tuple(piece.place((*inputs, *outputs))[len(inputs) :])


def _outputs(place: Place, matrices: Matrices) -> Iterator[tuple[tuple[slice, ...], np.ndarray]]:
    """Pairs of a slice of the weight's outputs and the matching columns [rank, ...] of B."""
    for piece, where in zip(place.pieces, _parts(place), strict=True):
        if piece.transpose:
            own = replace(piece, shape=matrices.up.shape)
            yield where, own.turned(matrices.up)
        else:
            yield where, matrices.up[piece.source[1:] or slice(None)].T
