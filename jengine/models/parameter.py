"""Declares parameters once: shape, logical axes, dtype and initialiser, on the module that uses them.

Sharding, dummy weights, loading and memory size are derived from these declarations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

Axes = tuple[str | None, ...]


def normal(stddev: float) -> nnx.Initializer:
    """Initialiser for matrices."""
    return jax.nn.initializers.normal(stddev)


def parameter(
    rngs: nnx.Rngs, shape: tuple[int, ...], axes: Axes, dtype: Any, init: nnx.Initializer
) -> nnx.Param:
    """A parameter with one logical axis name a dimension (None: never sharded)."""
    if len(shape) != len(axes):
        raise ValueError(f"parameter of shape {shape} declares axes {axes}")
    return nnx.Param(init(rngs.params(), shape, dtype), axes=axes)


def ones(rngs: nnx.Rngs, size: int, axis: str, dtype: Any) -> nnx.Param:
    """A norm's scale."""
    return parameter(rngs, (size,), (axis,), dtype, jax.nn.initializers.ones)


def zeros(rngs: nnx.Rngs, shape: tuple[int, ...], axes: Axes, dtype: Any) -> nnx.Param:
    """A bias."""
    return parameter(rngs, shape, axes, dtype, jax.nn.initializers.zeros)


def named_parameters(model: nnx.Module) -> Iterator[tuple[str, nnx.Param]]:
    """(dotted path, parameter) of every parameter, in one order everywhere."""
    for path, leaf in nnx.state(model, nnx.Param).flat_state():
        yield ".".join(str(part) for part in path), leaf


def parameter_bytes(model: nnx.Module) -> int:
    """Bytes that the parameters take; works on abstract modules too."""
    return sum(
        math.prod(leaf.shape) * np.dtype(jnp.dtype(leaf.dtype)).itemsize
        for _, leaf in named_parameters(model)
    )
