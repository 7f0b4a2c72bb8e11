"""Finds a function's kernel calls by abstract tracing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.launch.call import kernel_call


def shape(sizes: tuple[int, ...], dtype: str) -> jax.ShapeDtypeStruct:
    """An abstract array."""
    return jax.ShapeDtypeStruct(sizes, jnp.dtype(dtype))


def traced(function: Any, *arguments: Any) -> Iterator[Any]:
    """Kernel calls of a function, at any depth."""
    yield from inside(jax.make_jaxpr(function)(*arguments).jaxpr)


def inside(jaxpr: Any) -> Iterator[Any]:
    """Kernel calls of a jaxpr and its sub-jaxprs."""
    for equation in jaxpr.eqns:
        if equation.primitive is kernel_call:
            yield equation
        for value in equation.params.values():
            if hasattr(value, "jaxpr"):
                yield from inside(value.jaxpr)
