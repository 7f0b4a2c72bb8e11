"""Abstract models (declarations only), and filling them with arrays.

In: a ModelConfig. Out: a model of shapes, then of arrays. No random numbers are drawn and nothing
is allocated twice. Must not know files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jengine.config import ModelConfig
from jengine.errors import ConfigError
from jengine.models import registry
from jengine.models.language_model import LanguageModel
from jengine.models.parameter import named_variables
from jengine.models.reading.hf_config import DTYPES

M = TypeVar("M", bound=nnx.Module)
# (path, logical axes, values) -> placed array. Values may be a `StoredParameter`, of which only the
# requested slices are read.
Place = Callable[[str, tuple[str | None, ...], Any], jax.Array]
NamedArray = tuple[str, jax.Array]  # dotted path and value of a parameter


def place_on_default_device(path: str, axes: tuple[str | None, ...], array: Any) -> jax.Array:
    """Placement of an unsharded model."""
    return jax.device_put(np.asarray(array))


def abstract_model(config: ModelConfig) -> LanguageModel:
    """Build the model in the config's dtype with ShapeDtypeStructs as parameters."""
    return registry.build(config, dtype=jnp.dtype(config.dtype), rngs=None)


def declaration(model: nnx.Module) -> nnx.Module:
    """Copy of a module with shapes in place of arrays."""
    graph, parameters = nnx.split(model)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), parameters)
    return nnx.merge(graph, shapes)


def with_values(model: M, values: Mapping[str, jax.Array]) -> M:
    """Set every parameter of a model by dotted path."""
    graph, parameters = nnx.split(model)
    _, tree = jax.tree.flatten(parameters)
    leaves = [values[path] for path, _ in named_variables(parameters)]
    return nnx.merge(graph, jax.tree.unflatten(tree, leaves))


def with_dtype(config: ModelConfig, dtype: Any) -> ModelConfig:
    """Config with weights of `dtype`; "auto" keeps the config's. Raises ConfigError."""
    if isinstance(dtype, str) and dtype == "auto":
        return config
    try:
        name = jnp.dtype(dtype).name
    except TypeError:
        name = str(dtype)
    if dtype is None or name not in DTYPES:
        raise ConfigError(f"dtype: given {dtype!r}, expected auto, {', '.join(DTYPES)}.")
    return dataclasses.replace(config, dtype=name)
