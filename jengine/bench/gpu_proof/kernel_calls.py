"""Finds a function's kernel calls by abstract tracing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.launch import kernel_equations


def shape(sizes: tuple[int, ...], dtype: str) -> jax.ShapeDtypeStruct:
    """An abstract array."""
    return jax.ShapeDtypeStruct(sizes, jnp.dtype(dtype))


def traced(function: Any, *arguments: Any) -> Iterator[Any]:
    """Kernel calls of a function, at any depth."""
    yield from kernel_equations(jax.make_jaxpr(function)(*arguments).jaxpr)
