"""Saves a model as a folder: weights, config, tokenizer and generation settings.

In: a model, its tokenizer and source folder. Out: a folder, renamed into place once complete. Must
not know engines.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from jengine.config import ModelConfig
from jengine.errors import CheckpointError, ConfigError, UnsupportedFeature
from jengine.models import registry
from jengine.models.language_model import LanguageModel
from jengine.models.parameter import named_parameters
from jengine.models.quantized import as_saved, rounded_paths
from jengine.models.tensors.quantized_pieces import stored_formats
from jengine.quantization.quantized import QuantizedWeights
from jengine.quantization.quantized_table import QuantizedTable
from jengine.weights.abstract import abstract_model, with_values
from jengine.weights.gguf.files import open_gguf
from jengine.weights.gguf.generation import generation_of
from jengine.weights.live import FIRST_SHOWN, differences
from jengine.weights.orbax_folder import ARRAYS_FOLDER
from jengine.weights.prepared import Arrays, weighted
from jengine.weights.resolve import is_gguf
from jengine.weights.safetensors_io import save_pretrained

Format = Literal["safetensors", "orbax"]
FORMATS: tuple[Format, ...] = ("safetensors", "orbax")
GENERATION_FILE = "generation_config.json"


class Saveable(Protocol):
    """The transformers tokenizer's method used for saving."""

    def save_pretrained(self, save_directory: str) -> object: ...


def save_model(
    model: nnx.Module,
    config: ModelConfig,
    path: str | Path,
    format: Format = "safetensors",
    *,
    tokenizer: Saveable | None = None,
    source: Path | None = None,
    overwrite: bool = False,
) -> None:
    """Save a model; generation settings are copied from `source`, its original folder. Raises
    ConfigError, CheckpointError."""
    if format not in FORMATS:
        raise ConfigError(f"format={format!r}: expected one of {', '.join(map(repr, FORMATS))}.")
    decoder = as_decoder(model, config)
    generation = _generation_text(source)
    with new_folder(path, overwrite=overwrite) as folder:
        _write_weights(decoder, folder, format)
        if generation is not None:
            (folder / GENERATION_FILE).write_bytes(generation)
        if tokenizer is not None:
            tokenizer.save_pretrained(str(folder))


def saved_config(config: ModelConfig, format: Format) -> ModelConfig:
    """Config of the saved model: quantization in compressed-tensors' layout; Orbax keeps none."""
    if config.quantization is None:
        return config
    if format == "safetensors":
        pieces = registry.plain_pieces(config)
        quantization = as_saved(config.quantization, pieces)
        if quantization is None:
            return dataclasses.replace(config, quantization=None)
        odd = rounded_paths(abstract_model(config)) - stored_formats(quantization, pieces).keys()
        if odd:
            raise UnsupportedFeature(
                f"save: {min(odd)} is stored as [inputs, outputs], which compressed-tensors cannot"
                " express. Save the model from an engine without quantization."
            )
        return dataclasses.replace(config, quantization=quantization)
    if config.quantization.on_load:
        return dataclasses.replace(config, quantization=None)
    raise UnsupportedFeature(
        f"save(format={format!r}) of a quantized checkpoint is not built. Use 'safetensors'."
    )


def with_plain_weights(model: nnx.Module, values: Arrays) -> dict[str, jax.Array]:
    """Checkpoint parameters of a model, with weights dequantized that compressed-tensors cannot
    express: tables, and fractional zeros. GGUF's scales become float32."""
    found = dict(values)
    for path, module in weighted(model).items():
        scheme = module.scheme
        if not isinstance(scheme, QuantizedTable | QuantizedWeights):
            continue
        given = {name: found.pop(f"{path}.{name}") for name in module.declared_specs()}
        if isinstance(scheme, QuantizedTable) or scheme.format.flat.real_zeros:
            made = scheme.plain(module.shape, given)
        else:
            made = scheme.flat(module.shape, given)
        found.update({f"{path}.{name}": array for name, array in made.items()})
    return found


def as_decoder(model: nnx.Module, config: ModelConfig) -> LanguageModel:
    """The parameters as a model, whose config's dtype is that of the parameters."""
    parameters = dict(named_parameters(model))
    dtypes = {jnp.dtype(leaf.dtype).name for leaf in parameters.values()}
    if len(dtypes) == 1 and config.quantization is None:
        config = dataclasses.replace(config, dtype=dtypes.pop())
    decoder = abstract_model(config)
    values = {path: leaf.get_value() for path, leaf in parameters.items()}
    problems = differences(dict(named_parameters(decoder)), values)
    if problems:
        raise CheckpointError(
            f"this model cannot be saved as {config.architecture}, which has other parameters:\n  "
            + "\n  ".join(problems[:FIRST_SHOWN])
        )
    return with_values(decoder, values)


@contextlib.contextmanager
def new_folder(path: str | Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Temporary folder to write into, renamed to `path` on success."""
    if not str(path):
        raise CheckpointError("path: given '', expected the folder to save the model in.")
    target = Path(os.path.expanduser(path)).resolve()
    _check_target(target, overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.partial")
    partial.mkdir()
    try:
        yield partial
        _put_in_place(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check_target(target: Path, overwrite: bool) -> None:
    """Raise CheckpointError instead of replacing a folder that is no saved model, or any without
    `overwrite`."""
    if target.exists() and not target.is_dir():
        raise CheckpointError(f"{target}: is a file, expected a folder to save the model in.")
    names = sorted(path.name for path in target.iterdir()) if target.is_dir() else []
    if names and not overwrite:
        raise CheckpointError(
            f"{target}: is not empty. Give another path, or overwrite=True to replace the model in"
            " it."
        )
    foreign = [name for name in names if (target / name).is_dir() and name != ARRAYS_FOLDER]
    if names and ("config.json" not in names or foreign):
        reason = f"holds {', '.join(foreign[:3])}" if foreign else "holds no config.json"
        raise CheckpointError(
            f"{target}: is not only a saved model: it {reason}. Everything in it would be deleted,"
            " so it is not replaced; give another path."
        )


def _put_in_place(partial: Path, target: Path) -> None:
    """Replace the target by two renames; a crash in between leaves both under temporary names."""
    former = target.with_name(partial.name.replace(".partial", ".replaced"))
    if target.is_dir() and any(target.iterdir()):
        target.rename(former)
    try:
        partial.rename(target)
    except OSError:
        if former.exists():
            former.rename(target)
        raise
    shutil.rmtree(former, ignore_errors=True)


def _write_weights(model: LanguageModel, folder: Path, format: Format) -> None:
    if format == "orbax":
        # Imported here because importing Orbax takes two seconds.
        from jengine.weights.orbax_io import save_orbax

        save_orbax(model, folder)
    else:
        save_pretrained(model, folder)


def _generation_text(source: Path | None) -> bytes | None:
    if source is not None and is_gguf(source):
        return json.dumps(generation_of(open_gguf(source)), indent=2).encode()
    file = None if source is None else source / GENERATION_FILE
    return file.read_bytes() if file is not None and file.is_file() else None
