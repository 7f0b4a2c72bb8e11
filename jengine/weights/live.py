"""Users' live parameters, checked against a model's declarations.

In: an nnx module, an nnx.State or a tree of arrays. Out: arrays by dotted path, without a copy
where dtype and sharding fit. Everything is checked before anything is replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from jengine.errors import ConfigError
from jengine.models.parameter import named_parameters, named_variables, with_current_names
from jengine.weights.abstract import Place
from jengine.weights.tree_tables import hint

FIRST_SHOWN = 10


def named_arrays(params: Any) -> dict[str, Any]:
    """Arrays by dotted path, from a module, a state, or nested dicts and lists."""
    if isinstance(params, nnx.Module):
        return {path: parameter[...] for path, parameter in named_parameters(params)}
    if isinstance(params, nnx.State):
        return {path: variable[...] for path, variable in named_variables(params)}
    found: dict[str, Any] = {}
    _walk("", params, found)
    return found


def _walk(path: str, node: Any, found: dict[str, Any]) -> None:
    if isinstance(node, nnx.Variable):
        node = node[...]
    if isinstance(node, Mapping):
        children = [(str(key), child) for key, child in node.items()]
    elif isinstance(node, Sequence) and not isinstance(node, str):
        children = [(str(index), child) for index, child in enumerate(node)]
    else:
        found[path] = node
        return
    for key, child in children:
        _walk(f"{path}.{key}" if path else key, child, found)


def fitting_arrays(
    model: nnx.Module, params: Any, place: Place, origin: Mapping[str, Path] | None = None
) -> dict[str, jax.Array]:
    """Arrays for every declared parameter. Raises ConfigError that lists the differences; `origin`
    names the source of a parameter in it."""
    declared = dict(named_parameters(model))
    given = with_current_names(named_arrays(params), declared)
    problems = differences(declared, given, with_current_names(origin or {}, declared))
    if problems:
        shown = "\n  ".join(problems[:FIRST_SHOWN])
        more = len(problems) - FIRST_SHOWN
        raise ConfigError(
            f"these parameters do not fit the model; nothing was changed:\n  {shown}"
            + (f"\n  and {more} more" if more > 0 else "")
            + hint([*given, *pytree_paths(params)], declared)
        )
    return {
        path: place(path, parameter.get_metadata()["axes"], given[path])
        for path, parameter in declared.items()
    }


def pytree_paths(tree: Any) -> list[str]:
    """Dotted paths of a pytree's leaves, as a mapping's rules match them."""
    leaves, _ = jax.tree.flatten_with_path(tree, is_leaf=lambda one: isinstance(one, nnx.Variable))
    return [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]


def differences(
    declared: Mapping[str, Any], given: Mapping[str, Any], origin: Mapping[str, Path] | None = None
) -> list[str]:
    """Missing, unknown and mismatched parameters, one line each."""
    at = {path: f"{path} ({where})" for path, where in (origin or {}).items()}
    lines = [f"{path}: missing" for path in declared if path not in given]
    unknown = (at.get(path, path) for path in given if path not in declared)
    lines += [f"{path}: not a parameter of this model" for path in unknown]
    for path, parameter in declared.items():
        if path not in given:
            continue
        array, path = given[path], at.get(path, path)
        if not isinstance(array, (jax.Array, np.ndarray)):
            lines.append(f"{path}: given a {type(array).__name__}, expected an array")
        elif array.shape != parameter.shape:
            lines.append(f"{path}: given shape {array.shape}, expected {parameter.shape}")
        elif array.dtype != parameter.dtype:
            lines.append(
                f"{path}: given {array.dtype}, expected {parameter.dtype} (cast it, or create the "
                f"engine with dtype={str(array.dtype)!r})"
            )
        elif isinstance(array, jax.Array) and array.is_deleted():
            lines.append(f"{path}: the array was deleted; was it donated to a training step?")
    return lines


def release_moved(given: Iterable[Any], in_use: Iterable[jax.Array]) -> None:
    """Delete given arrays whose buffers are not in use because their contents had to be copied."""
    kept = set().union(*map(buffers, in_use))
    for array in given:
        if isinstance(array, jax.Array) and not array.is_deleted() and not buffers(array) & kept:
            array.delete()


def buffers(array: jax.Array) -> set[tuple[int, int]]:
    """(device id, address) of an array's buffers."""
    return {(s.device.id, s.data.unsafe_buffer_pointer()) for s in array.addressable_shards}
