"""The kernel calls that a function makes, found by tracing it with shapes in place of arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.launch.call import kernel_call


def shape(sizes: tuple[int, ...], dtype: str) -> jax.ShapeDtypeStruct:
    """An array without data."""
    return jax.ShapeDtypeStruct(sizes, jnp.dtype(dtype))


def traced(function: Any, *arguments: Any) -> Iterator[Any]:
    """The kernel calls of a function, however deep."""
    yield from inside(jax.make_jaxpr(function)(*arguments).jaxpr)


def inside(jaxpr: Any) -> Iterator[Any]:
    """Those of a traced program and of the programs in it."""
    for equation in jaxpr.eqns:
        if equation.primitive is kernel_call:
            yield equation
        for value in equation.params.values():
            if hasattr(value, "jaxpr"):
                yield from inside(value.jaxpr)
