"""The source of a model: a folder, or a live module of the user's program.

In: EngineArgs. Out: config, tokenizer and generation settings, and placed parameters. Must not know
sizes, caches or requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from jengine.assembly.model_facts import (
    ModelSource,
    generation_of,
    generation_override,
    tokenizer_of,
)
from jengine.assembly.peer_weights import peer_parameters, refuse_rounded
from jengine.assembly.pooling_source import with_pooling
from jengine.assembly.settings.model_args import ModelSettings
from jengine.config import ModelConfig
from jengine.errors import ConfigError
from jengine.models import registry
from jengine.models.quantized import with_quantization, with_schemes
from jengine.text.tokenizer import Tokenizer
from jengine.weights.abstract import NamedArray, abstract_model, declaration, with_dtype
from jengine.weights.dummy import dummy_arrays
from jengine.weights.folder import (
    INDEX_FILE,
    SINGLE_FILE,
    read_config_file,
    read_model_config,
    register_imported,
)
from jengine.weights.gguf.config import config_of
from jengine.weights.gguf.files import open_gguf
from jengine.weights.hf_arrays import given_parameters
from jengine.weights.live import fitting_arrays
from jengine.weights.orbax_folder import is_orbax
from jengine.weights.resolve import is_gguf, resolve_model
from jengine.weights.safetensors_io import open_model
from jengine.weights.stage_places import StagePlaces

logger = logging.getLogger(__name__)


def open_model_source(asked: ModelSettings) -> ModelSource:
    """Read everything but the parameters."""
    if isinstance(asked.model, nnx.Module):
        override = generation_override(asked.override_generation_config)
        config = with_quantization(live_config(asked), asked.quantization)
        return ModelSource(config, None, tokenizer_of(asked, None), override)
    check_model(asked.model)
    # Absolute, to be found after the program changes its working directory.
    folder = resolve_model(asked.model).absolute()
    generation = generation_of(asked, folder)
    load = cache(lambda: tokenizer_of(asked, folder))
    if not is_gguf(folder):
        is_asked = asked.model_impl == "generic"
        register_imported(folder, asked.hf_overrides, is_asked=is_asked)
    config = with_dtype(used_config(asked, folder, load), asked.dtype)
    config = with_quantization(config, asked.quantization)
    # Last: it would report a broken config.json as a tokenizer that cannot be loaded.
    return ModelSource(config, folder, load(), generation)


def used_config(
    asked: ModelSettings, folder: Path, tokenizer: Callable[[], Tokenizer | None]
) -> ModelConfig:
    """The folder's model config as modified by settings."""
    if is_gguf(folder):
        if asked.hf_overrides:
            raise ConfigError(
                f"{folder} is a GGUF file: hf_overrides need a folder with config.json."
            )
        hf = config_of(open_gguf(folder))
        return with_pooling(asked, read_model_config(folder), hf, folder, tokenizer)
    hf = read_config_file(folder, asked.hf_overrides)
    return with_pooling(asked, registry.model_config(hf), hf, folder, tokenizer)


def check_model(model: Any) -> None:
    """Raise unless the model is a name or a module."""
    if isinstance(model, (str, Path)):
        return
    given = f"model is a {type(model).__name__}"
    if isinstance(model, (nnx.State, Mapping)):
        raise ConfigError(
            f"{given}: parameters without the model they belong to. Give the folder as model and "
            "these as params=..., or the module itself; jengine.from_hf(arrays, config) makes one "
            "of arrays under Hugging Face names."
        )
    if isinstance(model, tuple) and model and isinstance(model[0], nnx.GraphDef):
        raise ConfigError(f"{given} with an nnx.GraphDef: give nnx.merge(graphdef, state).")
    raise ConfigError(
        f"{given} ({model!r:.60}): expected the path of a folder, 'demo', or a flax.nnx module."
    )


def is_live(asked: ModelSettings) -> bool:
    """Whether parameters are the user's live arrays."""
    return asked.params is not None or isinstance(asked.model, nnx.Module)


def load_parameters(
    asked: ModelSettings, source: ModelSource, place: StagePlaces, bar: Callable[..., Any]
) -> tuple[nnx.Module, Iterable[NamedArray]]:
    """The abstract model, and its placed parameters (usually lazy). Live arrays are not copied if
    dtype and sharding fit."""
    if asked.weight_settings is not None:
        refuse_rounded(asked.weight_settings, source.config)
    if source.folder is None:
        values = fitting_arrays(asked.model, asked.model, place)
        return live_declaration(asked.model, source.config), values.items()
    is_stored = asked.params is None and asked.load_format not in ("dummy", "peer")
    if is_stored and stored_format(asked.load_format, source.folder) == "safetensors":

        def progress(label: str, total: int) -> Any:
            return bar(total=total, desc=label, unit="B", unit_scale=True)

        return open_model(
            source.folder, dtype=asked.dtype, quantization=asked.quantization, place=place,
            progress=progress, config=source.config,
        )  # fmt: skip
    declared = abstract_model(source.config)
    if asked.params is not None:
        return declared, given_parameters(source.config, declared, asked.params, place).items()
    if asked.load_format == "peer":
        settings = asked.weight_settings
        assert settings is not None, "the settings of a peer were checked"
        return declared, peer_parameters(settings, declared, place, bar)
    if asked.load_format == "dummy":
        return declared, dummy_arrays(declared, seed=asked.seed or 0, place=place)
    # Imported here because importing Orbax takes two seconds.
    from jengine.weights.orbax_io import read_orbax

    place.refuse_several_processes("an Orbax checkpoint")
    keeps_dtype = isinstance(asked.dtype, str) and asked.dtype == "auto"
    values = read_orbax(source.folder, declared, place.sharding, cast=not keeps_dtype)
    return declared, emptied(values)


def live_declaration(model: nnx.Module, config: ModelConfig) -> nnx.Module:
    """Declarations of a live module, with the weight schemes of `config.quantization`."""
    declared = declaration(model)
    if config.quantization is not None:
        with_schemes(declared, config.quantization, {}, config.dtype)
    return declared


def emptied(values: dict[str, jax.Array]) -> Iterator[NamedArray]:
    """Yield items, removing each from `values` so that it can be freed."""
    for path in list(values):
        yield path, values.pop(path)


def stored_format(load_format: str, folder: Path) -> str:
    """Storage format of a folder's weights; safetensors if it has both or neither."""
    if load_format != "auto":
        return load_format
    has_safetensors = any((folder / name).is_file() for name in (SINGLE_FILE, INDEX_FILE))
    if not is_orbax(folder):
        return "safetensors"
    if has_safetensors:
        logger.info(
            "%s holds safetensors and an Orbax checkpoint; reading the safetensors. "
            "load_format='orbax' reads the other.", folder,
        )  # fmt: skip
    return "safetensors" if has_safetensors else "orbax"


def live_config(asked: ModelSettings) -> ModelConfig:
    """The config of a live module."""
    if asked.params is not None:
        raise ConfigError("model is a module, which has its parameters; leave params out.")
    config = vars(asked.model).get("config")
    if not isinstance(config, ModelConfig):
        raise ConfigError(
            f"model is a module of another library ({type(asked.model).__name__}); expected one "
            "of jengine's. jengine.from_hf(module, config, mapping=...) makes one of its arrays."
        )
    if with_dtype(config, asked.dtype) != config:
        raise ConfigError(
            f"dtype={asked.dtype!r}: this live model's parameters are {config.dtype}."
        )
    return config
