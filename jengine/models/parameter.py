"""Declares parameters: shape, logical axes, dtype and initialiser, once, on the module that uses
them.

Sharding, dummy weights, loading and memory size are derived from these declarations.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jengine.layers.initializer import Initializer

T = TypeVar("T")
Axes = tuple[str | None, ...]


def normal(stddev: float) -> Initializer:
    return Initializer(stddev=stddev)


def parameter(
    rngs: nnx.Rngs | None, shape: tuple[int, ...], axes: Axes, dtype: Any, init: Initializer
) -> nnx.Param:
    """A parameter with a logical axis name per dimension (None: never sharded). Without `rngs` it
    is abstract: a ShapeDtypeStruct."""
    if len(shape) != len(axes):
        raise ValueError(f"parameter of shape {shape} declares axes {axes}")
    if rngs is None:
        return nnx.Param(jax.ShapeDtypeStruct(shape, dtype), axes=axes, init=init)
    return nnx.Param(init(rngs.params(), shape, dtype), axes=axes, init=init)


def zeros(rngs: nnx.Rngs | None, shape: tuple[int, ...], axes: Axes, dtype: Any) -> nnx.Param:
    """A zero-initialised parameter, such as a bias."""
    return parameter(rngs, shape, axes, dtype, Initializer())


def named_parameters(model: nnx.Module) -> Iterator[tuple[str, nnx.Param]]:
    """Yield (dotted path, parameter) in a fixed order."""
    for path, variable in named_variables(nnx.state(model)):
        if isinstance(variable, nnx.Param):
            yield path, variable


def named_variables(state: nnx.State) -> list[tuple[str, nnx.Variable]]:
    """(dotted path, variable) in JAX's flattening order.

    nnx's own flattening and filters leave a reference cycle, which would keep old weights alive
    until the next garbage collection.
    """
    found, _ = jax.tree.flatten_with_path(state, is_leaf=lambda x: isinstance(x, nnx.Variable))
    return [(".".join(str(key.key) for key in path), variable) for path, variable in found]


def with_current_names(given: Mapping[str, T], declared: Container[str]) -> dict[str, T]:
    """Rename parameters of older versions: `qkv` to `qkv.weight`, `qkv_bias` to `qkv.bias`."""
    return {_current(name, given, declared): value for name, value in given.items()}


def _current(name: str, given: Container[str], declared: Container[str]) -> str:
    module = name.removesuffix("_bias")
    current = f"{name}.weight" if module == name else f"{module}.bias"
    if name in declared or current not in declared or current in given:
        return name
    return current


def parameter_bytes(model: nnx.Module) -> int:
    """Total bytes of parameters; works on abstract modules too."""
    return sum(
        math.prod(leaf.shape) * np.dtype(jnp.dtype(leaf.dtype)).itemsize
        for _, leaf in named_parameters(model)
    )
