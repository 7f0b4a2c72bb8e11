"""Maps other libraries' parameter trees to checkpoint tensors.

In: a pytree, and rules or a function. Out: arrays under Hugging Face names, converted when read.
Rules of known libraries are in `tree_tables`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from jengine.config import ModelConfig
from jengine.errors import CheckpointError
from jengine.models.parameter import named_variables
from jengine.weights.abstract import Place
from jengine.weights.hf_arrays import as_array, hf_parameters
from jengine.weights.map_to import MapTo, Rules
from jengine.weights.partial_updates import GIVEN, Gathered
from jengine.weights.tree_tables import rules_of

# (path, array) -> arrays by Hugging Face name.
MapFunction = Callable[[str, Any], Mapping[str, Any]]
# A known library's name, rules, or a function.
Mapped = str | Rules | MapFunction
FIRST_SHOWN = 10


def mapped_parameters(
    config: ModelConfig, model: nnx.Module, tree: Any, mapping: Mapped, place: Place | None
) -> dict[str, jax.Array]:
    """Every declared parameter by path, after all were checked. Raises CheckpointError."""
    return hf_parameters(config, model, mapped_tensors(tree, mapping), place)


@dataclass(frozen=True)
class MappedTensor:
    """A checkpoint tensor cut from a tree's array when read."""

    name: str
    array: Any
    how: Callable[[Any], Any]
    file: Path = GIVEN

    @cached_property
    def shape(self) -> tuple[int, ...]:
        given = jax.ShapeDtypeStruct(self.array.shape, self.array.dtype)
        return jax.eval_shape(self.how, given).shape

    @property
    def size(self) -> int:
        return math.prod(self.shape) * np.dtype(self.array.dtype).itemsize

    def read(self) -> np.ndarray:
        """The tensor on the host, gathered from its shards."""
        return np.asarray(self.how(self.array))


def mapped_tensors(tree: Any, mapping: Mapped) -> dict[str, MappedTensor]:
    """Tensors of a tree under Hugging Face names; leaves other than arrays are skipped.

    Raises CheckpointError where a path matches no rule, a name occurs twice, or a rule does not fit
    its array.
    """
    arrays = tree_arrays(tree)
    if isinstance(mapping, str):
        mapping = rules_of(mapping)
    if isinstance(mapping, Mapping):
        return unique(by_rules(arrays, {rule: as_target(to) for rule, to in mapping.items()}))
    return unique(
        MappedTensor(name, as_array(name, one), lambda array: array)
        for path, array in arrays.items()
        for name, one in mapping(path, array).items()
    )


def tree_arrays(tree: Any) -> dict[str, Any]:
    """Arrays by dotted path, from a pytree, an nnx module or its state."""
    if isinstance(tree, nnx.Module):
        tree = nnx.state(tree, nnx.Param)
    if isinstance(tree, nnx.State):
        return {path: variable[...] for path, variable in named_variables(tree)}
    if isinstance(tree, Gathered):
        return dict(tree)
    tree = jax.tree.map(
        lambda one: one[...] if isinstance(one, nnx.Variable) else one,
        tree, is_leaf=lambda one: isinstance(one, nnx.Variable),
    )  # fmt: skip
    leaves, _ = jax.tree.flatten_with_path(tree)
    named = {jax.tree_util.keystr(path, simple=True, separator="."): one for path, one in leaves}
    return {path: one for path, one in named.items() if hasattr(one, "__dlpack__")}


def as_target(given: MapTo | str | None) -> MapTo | None:
    """Normalise a rule's target. Raises CheckpointError."""
    if given is None or isinstance(given, MapTo):
        return given
    if isinstance(given, str):
        return MapTo(given)
    raise CheckpointError(
        f"mapping: {given!r:.60} is a {type(given).__name__}; expected a Hugging Face name, a "
        "MapTo, or None for arrays that go nowhere."
    )


def by_rules(
    arrays: Mapping[str, Any], rules: Mapping[str, MapTo | None]
) -> Iterator[MappedTensor]:
    """Tensors of each array by the first matching rule. Raises CheckpointError for unmatched
    paths."""
    patterns = [(expression(rule), to) for rule, to in rules.items()]
    unmatched = []
    for path, array in arrays.items():
        found = ((pattern.fullmatch(path), to) for pattern, to in patterns)
        match, to = next(((match, to) for match, to in found if match), (None, None))
        if match is None:
            unmatched.append(f"{path} {tuple(array.shape)}")
        elif to is not None:
            yield from tensors_of(path, array, to, match.groupdict())
    if unmatched:
        more = len(unmatched) - FIRST_SHOWN
        raise CheckpointError(
            "mapping: no rule matches these arrays; nothing was changed:\n  "
            + "\n  ".join(unmatched[:FIRST_SHOWN])
            + (f"\n  and {more} more" if more > 0 else "")
            + "\nA rule whose target is None leaves arrays out."
        )


def expression(rule: str) -> re.Pattern[str]:
    """Compile a rule's pattern to a regular expression with a group per placeholder."""
    parts = re.split(r"(\{\w+(?::path)?\})", rule)
    return re.compile("".join(group_of(one) if one[:1] == "{" else re.escape(one) for one in parts))


def group_of(placeholder: str) -> str:
    """Regular expression of `{name}` (one path component) or `{name:path}` (one or more)."""
    name, _, several = placeholder.strip("{}").partition(":")
    return f"(?P<{name}>.+)" if several else f"(?P<{name}>[^.]+)"


def tensors_of(path: str, array: Any, to: MapTo, words: dict[str, str]) -> Iterator[MappedTensor]:
    """Tensors that an array holds, one per layer and name."""
    array = as_array(path, array)
    layers: Iterable[int | None] = (None,)
    if to.stacked is not None and array.ndim:
        layers = range(array.shape[to.stacked % array.ndim])
    try:
        for layer in layers:
            own = words if layer is None else {**words, "layer": str(layer)}
            for part, name in enumerate(to.names):
                how = partial(to.laid_out, layer=layer, part=part)
                tensor = MappedTensor(name.format(**own), array, how)
                tensor.shape  # noqa: B018 - raises if the layout is not one of this array
                yield tensor
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"mapping: {to} does not fit {path} {tuple(array.shape)}: {type(error).__name__}: "
            f"{error}"
        ) from error


def unique(tensors: Iterable[MappedTensor]) -> dict[str, MappedTensor]:
    """Tensors by name. Raises CheckpointError for duplicates."""
    found: dict[str, MappedTensor] = {}
    for one in tensors:
        if one.name in found:
            raise CheckpointError(f"mapping: two arrays go to {one.name!r}; expected one.")
        found[one.name] = one
    return found
