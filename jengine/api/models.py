"""Models without an engine: loaded from a folder, made from arrays under Hugging Face names or at
random, and saved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jengine.assembly.mesh_placement import placement_for
from jengine.assembly.model_source import load_parameters, open_model_source
from jengine.assembly.progress import progress_factory
from jengine.assembly.settings.args import EngineArgs
from jengine.config import ModelConfig
from jengine.errors import ConfigError
from jengine.models import registry
from jengine.models.language_model import LanguageModel
from jengine.models.parameter import named_parameters
from jengine.models.stages import stage_layout
from jengine.weights.abstract import abstract_model, with_dtype, with_values
from jengine.weights.folder import read_config_file
from jengine.weights.hf_arrays import GivenTensor, given_tensors, hf_parameters
from jengine.weights.mapped_trees import Mapped, MappedTensor, mapped_tensors
from jengine.weights.partial_updates import gathered
from jengine.weights.resolve import resolve_model
from jengine.weights.save import Format, Saveable
from jengine.weights.save import save_model as write_folder
from jengine.weights.stage_places import StagePlaces
from sharding.jax_settings import engine_context


@engine_context()
def load_model(
    model: str | Path,
    *,
    dtype: Any = "auto",
    mesh: jax.sharding.Mesh | None = None,
    **settings: Any,
) -> LanguageModel:
    """Load a model's parameters as a flax.nnx module, without an engine.

    Args:
        model: A folder in Hugging Face format, a GGUF file, org/name of the Hub, or "demo".
        dtype: "auto" is the checkpoint's.
        mesh: Devices to shard the parameters over, as an engine with this mesh would; by default
            one device holds them.
        settings: Other settings of `LLM` that affect how parameters are read, such as load_format.

    Returns:
        A module with `model.score(tokens)`, to train or to give to `LLM(model, tokenizer=...)`.
    """
    asked = engine_args(model, dtype, mesh, settings).groups
    source = open_model_source(asked.model)
    place = StagePlaces(placement_for(asked, source.config), stage_layout(source.config, 1))
    bar = progress_factory(asked.watch.show_progress)
    declared, values = load_parameters(asked.model, source, place, bar)
    assert isinstance(declared, LanguageModel), "read from a folder"
    return with_values(declared, dict(values))


def from_hf(
    arrays: Any,
    config: Mapping[str, Any] | str | Path | Any,
    *,
    mapping: Mapped | None = None,
    dtype: Any = "auto",
    mesh: jax.sharding.Mesh | None = None,
) -> LanguageModel:
    """Make a flax.nnx module of arrays under Hugging Face names. The arrays are copied.

    Args:
        arrays: A flat or nested mapping of numpy, JAX or DLPack arrays, named as in the model's
            safetensors files ("model.layers.0.self_attn.q_proj.weight"); or, as for
            `LLM.update_params`, an iterable of pairs or of mappings.
        config: The contents of config.json, a transformers config, or a folder with config.json.
        mapping: How the paths of any pytree become such names; as for `LLM.update_params`.
        dtype: "auto" is the config's, or else the arrays' own.
        mesh: Devices to shard the parameters over; by default one device holds them.

    Returns:
        A module to train, or to give to `LLM(model, tokenizer=...)`.

    Raises:
        CheckpointError: A tensor is missing, unknown, or of another shape.
    """
    hf = hf_config(config)
    arrays = gathered(arrays, mapping)
    with engine_context():
        given: Mapping[str, GivenTensor | MappedTensor]
        given = given_tensors(arrays) if mapping is None else mapped_tensors(arrays, mapping)
        names_dtype = any(hf.get(key) is not None for key in ("dtype", "torch_dtype"))
        if isinstance(dtype, str) and dtype == "auto" and not names_dtype:
            dtype = next((one.array.dtype for one in given.values()), dtype)
        found = with_dtype(registry.model_config(hf), dtype)
        asked = engine_args("demo", "auto", mesh, {}).groups
        place = StagePlaces(placement_for(asked, found), stage_layout(found, 1))
        model = abstract_model(found)
        return with_values(model, hf_parameters(found, model, given, place))


@engine_context()
def from_config(
    config: Mapping[str, Any] | str | Path | Any,
    *,
    rngs: nnx.Rngs,
    dtype: Any = "auto",
    mesh: jax.sharding.Mesh | None = None,
) -> LanguageModel:
    """Make a flax.nnx module with random parameters, to train from scratch.

    Args:
        config: The contents of config.json, a transformers config, or a folder with config.json.
        rngs: Source of randomness, such as `flax.nnx.Rngs(0)`.
        dtype: "auto" is the config's.
        mesh: Devices to shard the parameters over; by default one device holds them.
    """
    if not isinstance(rngs, nnx.Rngs):
        raise ConfigError(f"rngs: given a {type(rngs).__name__}, expected a flax.nnx.Rngs(seed).")
    found = with_dtype(registry.model_config(hf_config(config)), dtype)
    model = registry.build(found, dtype=jnp.dtype(found.dtype), rngs=rngs)
    place = StagePlaces(
        placement_for(engine_args("demo", "auto", mesh, {}).groups, found), stage_layout(found, 1)
    )
    return with_values(
        model,
        {
            path: place(path, parameter.get_metadata()["axes"], parameter[...])
            for path, parameter in named_parameters(model)
        },
    )


def save_model(
    model: LanguageModel,
    path: str | Path,
    *,
    format: Format = "safetensors",
    tokenizer: Saveable | None = None,
    overwrite: bool = False,
) -> None:
    """Write a module of `load_model`, `from_hf` or `from_config` as a model folder.

    Args:
        model: The module.
        path: The folder, which appears atomically.
        format: "safetensors", which transformers loads too, or "orbax".
        tokenizer: A transformers tokenizer, saved with it.
        overwrite: Replace a saved model, never anything else.
    """
    if not isinstance(model, LanguageModel):
        raise ConfigError(
            f"save_model: given a {type(model).__name__}, expected a module of load_model, from_hf "
            "or from_config; from_hf(arrays, config, mapping=...) makes one of another library's."
        )
    write_folder(model, model.config, path, format, tokenizer=tokenizer, overwrite=overwrite)


def engine_args(model: Any, dtype: Any, mesh: Any, settings: Mapping[str, Any]) -> EngineArgs:
    """Engine settings that control how parameters are read and placed."""
    where: dict[str, Any] = {"mesh": mesh} if mesh is not None else {"tensor_parallel_size": 1}
    given = {"skip_tokenizer_init": True, **where, **settings}
    return EngineArgs.checked("load_model", model=model, dtype=dtype, **given)


def hf_config(given: Any) -> Mapping[str, Any]:
    """The contents of config.json, from a path, mapping or config object."""
    if isinstance(given, (str, Path)):
        return read_config_file(resolve_model(given))
    if isinstance(given, ModelConfig):
        return registry.write_config(given)
    found = given if isinstance(given, Mapping) else getattr(given, "to_dict", dict)()
    if not found.get("architectures"):
        raise ConfigError(
            "config: given no 'architectures', expected the contents of a config.json, such as "
            "{'architectures': ['Qwen3ForCausalLM'], 'hidden_size': ...}, or a transformers config."
        )
    return found
