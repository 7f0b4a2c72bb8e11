"""Loads and saves Orbax checkpoints, whose arrays are named by parameter paths.

In: a folder written by `save_orbax` or a training loop, or a model. Out: a model, each device
reading only its shards, or such a folder. Importing this takes two seconds, because of Orbax.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Sharding
from orbax.checkpoint import v1

from jengine.config import ModelConfig
from jengine.errors import CheckpointError
from jengine.models import registry
from jengine.models.language_model import LanguageModel
from jengine.models.parameter import named_parameters, with_current_names
from jengine.models.reading.hf_config import DTYPES
from jengine.weights.abstract import abstract_model, with_values
from jengine.weights.live import FIRST_SHOWN, differences
from jengine.weights.orbax_folder import ARRAYS_FOLDER, find_checkpoint, is_orbax, stored_trees

__all__ = ["is_orbax", "load_orbax", "read_orbax", "save_orbax"]

# (path, logical axes, shape) -> sharding of a parameter.
Shardings = Callable[[str, tuple[str | None, ...], tuple[int, ...]], Sharding]
LONGEST_CAUSE = 400
# Limit of host memory while reading or writing; without it Orbax copies the whole model there.
HOST_BYTES = 2**31


def load_orbax(
    folder: Path | str, config: ModelConfig, shardings: Shardings, *, cast: bool = False
) -> LanguageModel:
    """Load a model. Arguments and errors are those of `read_orbax`."""
    model = abstract_model(config)
    return with_values(model, read_orbax(folder, model, shardings, cast=cast))


def read_orbax(
    folder: Path | str, model: LanguageModel, shardings: Shardings, *, cast: bool = False
) -> dict[str, jax.Array]:
    """Parameters of a declared model by dotted path, each device reading only its shards. `cast`
    converts floating point dtypes while reading. Raises CheckpointError."""
    checkpoint = find_checkpoint(folder)
    declared = dict(named_parameters(model))
    trees = _described(checkpoint)
    stored = _named_leaves(checkpoint, trees)
    above = parameters_prefix(checkpoint, stored, declared)
    _check(checkpoint, stored, declared, above, cast)
    names = stored_names(stored, declared, above)
    targets = {
        names[path]: jax.ShapeDtypeStruct(
            parameter.shape,
            parameter.dtype,
            sharding=shardings(path, parameter.get_metadata()["axes"], parameter.shape),
        )
        for path, parameter in declared.items()
    }
    values = _read(checkpoint, trees, targets)
    _check_range(checkpoint, stored, values)
    return {path: values[names[path]] for path in declared}


def save_orbax(model: LanguageModel, folder: Path | str) -> None:
    """Write config.json, and parameters as nested dicts in a subfolder."""
    folder = Path(folder).resolve()
    values = {path: leaf.get_value() for path, leaf in named_parameters(model)}
    config = dataclasses.replace(model.config, dtype=_one_dtype(values))
    text = json.dumps(registry.write_config(config), indent=2) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    tree: Any = nested(values)
    with _bounded_memory(values.values()):
        v1.save(str(folder / ARRAYS_FOLDER), tree)
    (folder / "config.json").write_text(text, encoding="utf-8")


def _one_dtype(values: Mapping[str, jax.Array]) -> str:
    dtypes = {str(value.dtype) for value in values.values()}
    if len(dtypes) > 1 or not dtypes <= set(DTYPES):
        raise CheckpointError(f"Parameters of {sorted(dtypes)}, expected one of {list(DTYPES)}.")
    return dtypes.pop()


def _described(checkpoint: Path) -> dict[str | None, Any]:
    """Metadata of trees that may hold parameters."""
    names = stored_trees(checkpoint)
    trees: dict[str | None, Any] = {}
    for name in names:
        if name is None or name in ABOVE_PARAMETERS:
            with _orbax_errors(checkpoint):
                trees[name] = v1.metadata(str(checkpoint), name).metadata
                if trees[name] is None:  # Orbax has logged the reason
                    raise ValueError("what it says about its arrays is damaged or has odd keys")
    if not trees:
        found = ", ".join(str(name) for name in names[:FIRST_SHOWN]) or "nothing"
        raise CheckpointError(
            f"{checkpoint}: no tree of parameters in this Orbax checkpoint: expected one called"
            f" {', '.join(ABOVE_PARAMETERS)}, found {found}."
        )
    return trees


def _named_leaves(checkpoint: Path, trees: Mapping[str | None, Any]) -> dict[str, Any]:
    """Array metadata by dotted path over all trees."""
    stored: dict[str, Any] = {}
    for tree_name, tree in trees.items():
        for path, leaf in jax.tree.leaves_with_path(tree):
            name = dotted(tree_name, path)
            if name in stored:
                raise CheckpointError(f"{checkpoint}: two arrays are called {name!r}.")
            stored[name] = leaf
    return stored


def _check(
    checkpoint: Path,
    stored: Mapping[str, Any],
    declared: Mapping[str, nnx.Param],
    above: str,
    cast: bool,
) -> None:
    """Raise CheckpointError unless the checkpoint holds exactly the model's parameters."""
    given = {}
    for path, name in stored_names(stored, declared, above).items():
        cast_to = declared[path].dtype if cast and path in declared else None
        given[path] = _stand_in(stored[name], cast_to)
    problems = differences(declared, given)
    if problems:
        shown = "\n  ".join(problems[:FIRST_SHOWN])
        more = len(problems) - FIRST_SHOWN
        raise CheckpointError(
            f"{checkpoint}: these parameters do not fit the model that config.json describes:"
            f"\n  {shown}" + (f"\n  and {more} more" if more > 0 else "")
        )


def _stand_in(leaf: Any, cast_to: Any) -> Any:
    """A zero broadcast to the leaf's shape, without memory; other leaves unchanged."""
    try:
        dtype = jnp.dtype(leaf.dtype)
        if cast_to is not None and jnp.issubdtype(dtype, jnp.floating):
            dtype = cast_to
        return np.broadcast_to(np.zeros((), dtype), leaf.shape)
    except (AttributeError, TypeError, ValueError):
        return leaf


def _read(
    checkpoint: Path,
    trees: Mapping[str | None, Any],
    targets: Mapping[str, jax.ShapeDtypeStruct],
) -> dict[str, jax.Array]:
    """Read the arrays named in `targets` only."""
    values: dict[str, jax.Array] = {}
    for tree_name, tree in trees.items():

        def target(path: Any, _: Any, tree_name: str | None = tree_name) -> Any:
            return targets.get(dotted(tree_name, path), v1.PLACEHOLDER)

        wanted = jax.tree.map_with_path(target, tree)
        if all(leaf is v1.PLACEHOLDER for leaf in jax.tree.leaves(wanted)):
            continue
        with _orbax_errors(checkpoint), _bounded_memory(targets.values()):
            loaded = v1.load(str(checkpoint), wanted, checkpointable_name=tree_name)
        named = (
            (dotted(tree_name, path), leaf) for path, leaf in jax.tree.leaves_with_path(loaded)
        )
        values.update((name, leaf) for name, leaf in named if name in targets)
    return values


def _check_range(
    checkpoint: Path, stored: Mapping[str, Any], values: Mapping[str, jax.Array]
) -> None:
    """Raise CheckpointError for values that overflowed to infinity in float16."""
    for name, array in values.items():
        narrowed = array.dtype == jnp.float16 and stored[name].dtype != jnp.float16
        if narrowed and bool(jnp.isinf(array).any()):
            raise CheckpointError(
                f"{checkpoint}: {name!r} holds values beyond float16; load it as bfloat16 or"
                " float32."
            )


@contextmanager
def _bounded_memory(arrays: Iterable[jax.Array | jax.ShapeDtypeStruct]) -> Iterator[None]:
    """Limit Orbax's host memory between file and device to a few arrays."""
    # Orbax refuses an array larger than the limit; a stored element has at most 8 bytes.
    limit = HOST_BYTES + 8 * max(math.prod(array.shape) for array in arrays)
    context = v1.Context()
    context.memory.read_concurrent_bytes = limit
    context.memory.write_concurrent_bytes = limit
    context.memory.transfer_concurrent_bytes = limit
    with context:
        yield


@contextmanager
def _orbax_errors(checkpoint: Path) -> Iterator[None]:
    """Convert the many exception types of damaged checkpoints to CheckpointError."""
    try:
        yield
    except jax.errors.JaxRuntimeError:
        raise  # a device's error, such as out of memory
    except Exception as error:
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        cause = " ".join(str(root).split())[:LONGEST_CAUSE] or type(root).__name__
        raise CheckpointError(
            f"{checkpoint}: this Orbax checkpoint cannot be read: {cause}. It may be damaged or"
            " incomplete: copy it again. Or save nnx.state(model), or nested dicts of arrays."
        ) from error


# Keys above parameters in training states. Others may hold optimizer moments or averaged weights.
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
