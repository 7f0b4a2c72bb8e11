"""Loads models from safetensors, and saves them for transformers too.

In: a folder in Hugging Face format, or a model. Out: a model, or such a folder. All names, dtypes
and shapes are checked before a model is built. Must not know families.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from flax import nnx

from jengine.config import ModelConfig
from jengine.errors import CheckpointError
from jengine.models import registry
from jengine.models.language_model import LanguageModel
from jengine.models.parameter import named_parameters
from jengine.models.quantized import with_quantization
from jengine.models.tensors.checkpoint import IgnoredTensor, Piece
from jengine.models.tensors.quantized_pieces import stored_modules
from jengine.weights.abstract import (
    NamedArray,
    Place,
    abstract_model,
    place_on_default_device,
    with_dtype,
    with_values,
)
from jengine.weights.device_copies import TransferLimit
from jengine.weights.folder import dense_tensors, open_checkpoint, read_model_config
from jengine.weights.quantized_tensors import decoded
from jengine.weights.safetensors_file import READABLE, StoredTensor, write_file
from jengine.weights.saved_form import SavedForm, exact_paths, plain_dtype
from jengine.weights.stored_parameter import ReadableTensor, StoredParameter
from jengine.weights.tile_copy import copy_threads


class ProgressBar(Protocol):
    """The methods of a tqdm bar used by loading."""

    def update(self, n: float) -> object: ...

    def close(self) -> object: ...


# (label, total bytes) -> progress bar.
ProgressFactory = Callable[[str, int], ProgressBar]


Pieces = Mapping[str, tuple[Piece, ...]]
Tensors = Mapping[str, ReadableTensor]
# Bytes compared at a time when a tied head is checked against the embedding.
COMPARED_AT_ONCE = 2**24


def load_model(
    folder: Path | str,
    *,
    dtype: Any = "auto",
    place: Place | None = None,
    progress: ProgressFactory | None = None,
) -> LanguageModel:
    """Load the model in `folder`; "auto" keeps the dtype of config.json. Raises CheckpointError."""
    model, values = open_model(folder, dtype=dtype, place=place, progress=progress)
    return with_values(model, dict(values))


def open_model(
    folder: Path | str,
    *,
    dtype: Any = "auto",
    quantization: str | None = None,
    place: Place | None = None,
    progress: ProgressFactory | None = None,
    config: ModelConfig | None = None,
) -> tuple[LanguageModel, Iterator[NamedArray]]:
    """The abstract model in `folder`, and its parameters as a lazy iterator. `config` overrides the
    folder's, with dtype and quantization applied."""
    folder = Path(folder)
    if config is None:
        config = with_dtype(read_model_config(folder), dtype)
        config = with_quantization(config, quantization)
    pieces = registry.checkpoint_map(config)
    tensors = registry.full_names(config, open_checkpoint(folder))
    tensors = {**tensors, **dense_tensors(folder, config)}
    if config.quantization is not None and not config.quantization.on_load:
        modules = stored_modules(config.quantization, registry.plain_pieces(config))
        tensors = decoded(folder, tensors, modules)
    pieces = present(pieces, tensors)
    # Before the model is built: a config that does not fit its tensors may describe a huge one.
    check_tensors(folder, tensors, pieces, registry.ignored_tensors(config))
    model = abstract_model(config)
    return model, stream(tensors, model, pieces, place, progress)


def present(pieces: Pieces, tensors: Tensors) -> Pieces:
    """Drop optional pieces without a tensor."""
    return {
        path: tuple(one for one in found if not one.optional or one.name in tensors)
        for path, found in pieces.items()
    }


def load_params(
    folder: Path | str,
    model: nnx.Module,
    pieces: Pieces,
    ignored: Sequence[IgnoredTensor] = (),
    *,
    place: Place | None = None,
    progress: ProgressFactory | None = None,
) -> dict[str, jax.Array]:
    """Parameters by path, in the declared shapes and dtypes. Raises CheckpointError."""
    folder = Path(folder)
    tensors = open_checkpoint(folder)
    check_tensors(folder, tensors, pieces, ignored)
    return dict(stream(tensors, model, pieces, place, progress))


def save_pretrained(model: LanguageModel, folder: Path | str) -> None:
    """Write config.json and model.safetensors that load here and in transformers."""
    folder = Path(folder)
    parameters = dict(named_parameters(model))
    exact = exact_paths(model.config)
    config = dataclasses.replace(model.config, dtype=plain_dtype(parameters, model.config, exact))
    written = registry.write_config(config)
    form = SavedForm(config, exact)
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "model.safetensors", form.declared(), form.arrays(parameters))
    (folder / "config.json").write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


def stream(
    tensors: Tensors,
    model: nnx.Module,
    pieces: Pieces,
    place: Place | None = None,
    progress: ProgressFactory | None = None,
) -> Iterator[NamedArray]:
    """Read and place parameters one at a time, in the same order in every process.

    Threads share the work within a parameter. Besides transfers in flight, the host holds one
    parameter at a time, or only this process's shards of it.
    """
    declared = dict(named_parameters(model))
    if set(declared) != set(pieces):
        raise ValueError(f"pieces and parameters differ: {set(declared) ^ set(pieces)}")
    place = place or place_on_default_device
    total = sum(tensors[name].size for name in _by_name(pieces))
    bar = progress("Loading weights", total) if progress else None
    transfers = TransferLimit()
    with contextlib.closing(bar) if bar else contextlib.nullcontext(), copy_threads() as threads:
        for path, parameter in declared.items():
            parts = tuple((piece, tensors[piece.name]) for piece in pieces[path])
            stored = StoredParameter(parameter.shape, np.dtype(parameter.dtype), parts, threads)
            transfers.make_room(stored.nbytes)
            value = place(path, parameter.get_metadata()["axes"], stored)
            transfers.add(value, stored.nbytes)
            if bar:
                bar.update(sum(_bytes_of(piece, tensor) for piece, tensor in parts))
            yield path, value
            del value


def check_tensors(
    folder: Path,
    tensors: Tensors,
    pieces: Pieces,
    ignored: Sequence[IgnoredTensor],
) -> None:
    """Raise CheckpointError unless the checkpoint holds exactly the needed tensors. Messages name
    the file of a tensor."""
    wanted = _by_name(pieces)
    missing = [name for name in wanted if name not in tensors]
    if missing:
        hint = " Is 'tie_word_embeddings' right?" if missing == ["lm_head.weight"] else ""
        raise CheckpointError(f"{folder}: tensors missing: {_first_ten(missing)}.{hint}")
    rules = {name: _rule_for(name, ignored) for name in tensors if name not in wanted}
    # Empty tensors may be ignored: transformers writes them for absent shared experts.
    unknown = [name for name, rule in rules.items() if rule is None and tensors[name].size]
    several = len({one.file for one in tensors.values()}) > 1
    at = {name: f" ({one.file.name})" if several else "" for name, one in tensors.items()}
    if unknown:
        unknown = [name + at[name] for name in unknown]
        raise CheckpointError(
            f"{folder}: tensors that the model has no place for: {_first_ten(unknown)}."
            " config.json and the weights do not belong together, or a feature is not supported."
        )
    problems = [
        problem + at[piece.name] for piece in wanted.values() for problem in _misfit(tensors, piece)
    ]
    if problems:
        raise CheckpointError(
            f"{folder}: tensors that do not fit the model: {_first_ten(problems)}."
        )
    for name, rule in rules.items():
        if rule is not None and rule.same_as is not None:
            _check_copy(tensors[name], tensors[rule.same_as], rule.reason)


def _bytes_of(piece: Piece, tensor: ReadableTensor) -> float:
    """Number of the tensor's bytes that a piece reads."""
    return tensor.size * math.prod(piece.source_shape) / math.prod(piece.shape)


def _by_name(pieces: Pieces) -> dict[str, Piece]:
    """Needed tensors by name, each with one piece that reads it."""
    return {piece.name: piece for found in pieces.values() for piece in found}


def _rule_for(name: str, ignored: Sequence[IgnoredTensor]) -> IgnoredTensor | None:
    return next((rule for rule in ignored if rule.matches(name)), None)


def _misfit(tensors: Tensors, piece: Piece) -> list[str]:
    found = tensors[piece.name]
    problems = []
    if found.shape != piece.shape:
        problems.append(f"{piece.name!r} has shape {found.shape}, expected {piece.shape}")
    if isinstance(found, StoredTensor) and found.dtype not in READABLE:
        known = ", ".join(READABLE)
        problems.append(f"{piece.name!r} is stored as {found.dtype}, expected one of {known}")
    return problems


def _check_copy(copy: ReadableTensor, original: ReadableTensor, reason: str) -> None:
    """Raise CheckpointError unless a stored copy of a tied head equals the embedding."""
    if not is_copy(copy, original):
        raise CheckpointError(
            f"{copy.file}: {copy.name!r} differs from {original.name!r}, but {reason}. If the head"
            " is a matrix of its own, set 'tie_word_embeddings' to false in config.json."
        )


def is_copy(copy: ReadableTensor, original: ReadableTensor) -> bool:
    """Whether two tensors are bitwise equal."""
    arrays = copy.read(), original.read()
    if arrays[0].dtype != arrays[1].dtype or copy.shape != original.shape:
        return False
    ours, theirs = (one.reshape(-1).view(np.uint8) for one in arrays)
    return all(
        np.array_equal(ours[at : at + COMPARED_AT_ONCE], theirs[at : at + COMPARED_AT_ONCE])
        for at in range(0, len(ours), COMPARED_AT_ONCE)
    )


def _first_ten(items: Sequence[str]) -> str:
    shown = ", ".join(items[:10])
    return shown if len(items) <= 10 else f"{shown} and {len(items) - 10} more"
