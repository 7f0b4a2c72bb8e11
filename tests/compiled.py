"""Functions compiled whole, for tests that call functions on arrays outside a step.

Called as they are, each of their ops is a program of its own, and compiling one takes 10 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import numpy as np


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as one program: arrays among its arguments are traced, all else is static."""

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        arrays = [leaf if isinstance(leaf, jax.Array | np.ndarray) else None for leaf in leaves]
        static = tuple(
            leaf if array is None else None for array, leaf in zip(arrays, leaves, strict=True)
        )
        return program(function, tree, static)(arrays)

    return call


@cache
def program(function: Callable[..., Any], tree: Any, static: tuple[Any, ...]) -> Callable[..., Any]:
    @jax.jit
    def run(arrays: list[Any]) -> Any:
        given = [one if array is None else array for array, one in zip(arrays, static, strict=True)]
        args, kwargs = jax.tree.unflatten(tree, given)
        return function(*args, **kwargs)

    return run
