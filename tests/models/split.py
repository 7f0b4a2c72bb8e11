"""A model as a flat tuple of its parameters, and back, for tests that run it without an engine."""

from __future__ import annotations

from collections.abc import Callable

import jax
from flax import nnx

Leaves = tuple[jax.Array, ...]


def split_model(model: nnx.Module) -> tuple[Leaves, Callable[[Leaves], nnx.Module]]:
    """A flat tuple of parameter leaves, and the function that rebuilds the model from it."""
    graph, parameters = nnx.split(model)
    leaves, tree = jax.tree.flatten(parameters)

    def rebuild(leaves: Leaves) -> nnx.Module:
        return nnx.merge(graph, jax.tree.unflatten(tree, leaves))

    return tuple(leaves), rebuild
