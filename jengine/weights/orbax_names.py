"""Maps array names in an Orbax checkpoint to parameter paths.

In: a checkpoint's names and a model's parameters. Out: the stored name of each parameter, whatever
tree it is in. Must not know arrays or files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from jengine.errors import CheckpointError
from jengine.models.parameter import with_current_names
from jengine.weights.live import FIRST_SHOWN

# Keys that parameters may be stored under. Others may be optimizer moments or averaged weights.
ABOVE_PARAMETERS = (
    "params", "parameters", "model", "weights", "state", "train_state", "default", "pytree",
)  # fmt: skip


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """{'a.b': 1} as {'a': {'b': 1}}."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *parents, last = path.split(".")
        node = tree
        for key in parents:
            node = node.setdefault(key, {})
        node[last] = value
    return tree


def dotted(tree: str | None, path: Sequence[Any]) -> str:
    """A leaf's dotted name, without the level added by nnx variables."""
    name = jax.tree_util.keystr(tuple(path), simple=True, separator=".")
    return name.removesuffix(".value") if tree is None else f"{tree}.{name.removesuffix('.value')}"


def parameters_prefix(
    checkpoint: Path, stored: Mapping[str, Any], declared: Mapping[str, Any]
) -> str:
    """Prefix of the parameters' names: '', 'params.', 'state.model.', ... Raises
    CheckpointError."""
    counts = Counter(
        prefix
        for name in stored
        for prefix in _possible_prefixes(name)
        if name.removeprefix(prefix) in declared
    )
    best = [prefix for prefix, count in counts.items() if count == max(counts.values())]
    if len(best) == 1:
        return best[0]
    if best:
        raise CheckpointError(
            f"{checkpoint}: the model's parameters are there more than once, under"
            f" {' and '.join(repr(prefix.rstrip('.')) for prefix in best)}. Save only one of them."
        )
    raise CheckpointError(
        f"{checkpoint}: holds none of the model's parameters. Expected names such as"
        f" {', '.join(list(declared)[:3])} at the top, or under one or more of"
        f" {', '.join(ABOVE_PARAMETERS)}; found {', '.join(list(stored)[:FIRST_SHOWN])}."
    )


def _possible_prefixes(name: str) -> Iterator[str]:
    prefix = ""
    yield prefix
    for key in name.split("."):
        if key not in ABOVE_PARAMETERS:
            return
        prefix += f"{key}."
        yield prefix


def stored_names(stored: Iterable[str], declared: Mapping[str, Any], above: str) -> dict[str, str]:
    """Stored names below `above`, by parameter path."""
    below = {name.removeprefix(above): name for name in stored if name.startswith(above)}
    return with_current_names(below, declared)
