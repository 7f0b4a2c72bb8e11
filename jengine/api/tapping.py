"""Validates taps, which capture or change activations inside the model.

In: tap names (with * for any layer), functions and their arrays. Out: existing names, traceable
functions, deduplicated arrays. A function that fails inside a step would stop the engine, so each
is traced for every shape of a step first.
"""

from __future__ import annotations

import dis
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from fnmatch import fnmatchcase
from functools import partial
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jengine.api.interventions import Applied, Patch, Steer
from jengine.config import ModelConfig
from jengine.errors import RequestError, UnsupportedFeature, nearest_name
from jengine.models.tap_points import tap_points
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.step.step_taps import call_intervention
from jengine.runner.variants.tap_sets import Change, Changes, Intervention
from sharding.jax_settings import engine_context

Given = Intervention | tuple[Intervention, Any] | Patch | Steer
Interventions = Mapping[str, Given]


def opened_taps(
    loaded: LoadedModel, config: ModelConfig, capture: Any, intervene: Any
) -> AbstractContextManager[int]:
    """Register the taps with the runner for the duration of the block; yields their number in
    plans."""
    if capture is None and intervene is None:
        return nullcontext(0)
    given = {"capture": capture, "intervene": intervene}
    refuse_divided(loaded, [name for name, value in given.items() if value])
    points = [point.name for point in tap_points(config)]
    wanted = [capture] if isinstance(capture, str) else capture or ()
    if not isinstance(wanted, Sequence) or not all(isinstance(name, str) for name in wanted):
        raise RequestError(
            f"capture={capture!r}: expected tap names, such as ['layers.3.output', 'norm']."
        )
    found = [name for pattern in wanted for name in matching("capture", pattern, points)]
    names = list(dict.fromkeys(found))
    changes = changes_of(interventions(intervene, points, config.hidden_size))
    if not loaded.taps.keeps(names, changes):  # skipped if kept: tracing takes longer than a step
        check_functions(loaded, config, changes)
    return loaded.taps.opened(names, changes)


def check_functions(loaded: LoadedModel, config: ModelConfig, changes: Changes) -> None:
    """Trace each function for every token count of a step."""
    tokens = sorted({bucket.num_tokens for bucket in loaded.ladders.buckets()})
    for change in {change[1:]: change for change in changes.each}.values():
        for count in tokens:
            check_function(change, changes.arrays, (count, config.hidden_size))


def refuse_divided(loaded: LoadedModel, given: Sequence[str]) -> None:
    """Refuse taps with pipelines, whose stages run different tokens at a time, and with prefill
    context parallelism, which reorders tokens."""
    sizes = {
        "prefill_context_parallel_size": loaded.placement.ways("tokens"),
        "pipeline_parallel_size": loaded.order.places.layout.num_stages,
    }
    for name, size in sizes.items():
        if given and size > 1:
            raise UnsupportedFeature(
                f"{given[0]} with {name}={size} is not built yet. Use tensor_parallel_size, or one "
                "device."
            )


@engine_context()
def interventions(given: Any, points: list[str], width: int) -> dict[str, Applied]:
    """Tap name -> function and its arrays, with patterns expanded."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise RequestError(
            f"intervene is a {type(given).__name__}; expected a dict of tap name to function, such "
            "as {'layers.3.output': lambda x: 0.9 * x}."
        )
    changes: dict[str, Applied] = {}
    for pattern, one in given.items():
        applied = applied_by(pattern, one, width)
        changes.update(dict.fromkeys(matching("intervene", pattern, points), applied))
    return changes


def applied_by(pattern: str, given: Any, width: int) -> Applied:
    """The function and arrays of an intervention at a tap point."""
    if isinstance(given, (Patch, Steer)):
        if given.width != width:
            raise RequestError(
                f"intervene[{pattern!r}]: the vectors of this {type(given).__name__} have "
                f"{given.width} numbers; this model's have {width}."
            )
        return given.applied
    function, arrays = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    if not callable(function):
        raise RequestError(
            f"intervene[{pattern!r}] is a {type(given).__name__}; expected a function of values "
            "[tokens, width], or of values and positions [tokens], a pair of a function and the "
            "arrays that it takes as its last argument, a Patch or a Steer."
        )
    try:
        hash(function)
    except TypeError as error:
        raise RequestError(
            f"intervene[{pattern!r}]: programs are kept by their function, and this "
            f"{type(function).__name__} has no hash. A module of arrays goes behind a function: "
            "(lambda x, module: module(x), module)."
        ) from error
    if any(isinstance(one, (jax.Array, np.ndarray)) for one in jax.tree.leaves(held_by(function))):
        warnings.warn(
            f"intervene[{pattern!r}]: the function holds arrays, which are compiled into its "
            "program as they are now. Give (function, arrays) and take them as the last argument: "
            "other arrays are then seen, and compile nothing.",
            stacklevel=2,
        )
    return Applied(function, arrays)


def held_by(function: Any) -> list[Any]:
    """Objects that a function closes over, reads as globals, or got from functools.partial."""
    if isinstance(function, partial):
        return [*function.args, *function.keywords.values(), *held_by(function.func)]
    if not isinstance(function, FunctionType):
        return []
    code = function.__code__
    read = {one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"}
    held = [one for name, one in function.__globals__.items() if name in read]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # unset closure variable
            held.append(cell.cell_contents)
    return held


@engine_context()
def changes_of(applied: Mapping[str, Applied], variants: int = 1) -> Changes:
    """Combine interventions, with arrays that several share passed once."""
    arrays: dict[int, tuple[int, Any, Any]] = {}  # by id: (index, given leaf, converted array)

    def place(leaf: Any) -> int:
        if id(leaf) not in arrays:
            arrays[id(leaf)] = len(arrays), leaf, own_array(leaf)
        return arrays[id(leaf)][0]

    each = []
    for point, (function, given) in applied.items():
        leaves, tree = jax.tree.flatten(given)
        places = tuple(map(place, leaves))
        each.append(Change(point, function, None if given is None else tree, places))
    return Changes(tuple(each), tuple(own for _, _, own in arrays.values()), variants)


def own_array(leaf: Any) -> jax.Array:
    """Convert a leaf to an array of a dtype that programs take. Numpy arrays are copied, since they
    may change while steps run."""
    try:
        array = jnp.array(leaf) if isinstance(leaf, np.ndarray) else jnp.asarray(leaf)
    except TypeError as error:
        raise RequestError(
            f"intervene: {type(leaf).__name__} among the arrays of a function; expected a pytree "
            "of arrays and numbers."
        ) from error
    return jax.lax.convert_element_type(array, array.dtype)  # drops weak types


def matching(argument: str, pattern: Any, points: Iterable[str]) -> list[str]:
    """Expand a tap name or glob pattern. Raises RequestError if it matches nothing."""
    names = [name for name in points if isinstance(pattern, str) and fnmatchcase(name, pattern)]
    if not names:
        layers = sum(name.endswith(".output") for name in points)
        raise RequestError(
            f"{argument}: there is no tap point {pattern!r} in this model. It has 'embed', 'norm', "
            f"and 'layers.N.attention', 'layers.N.mlp', 'layers.N.output' with N from 0 to "
            f"{layers - 1} or * for all.{nearest_name(str(pattern), points)}"
        )
    return names


@engine_context()
def check_function(change: Change, arrays: Sequence[jax.Array], shape: tuple[int, int]) -> None:
    """Trace an intervention as a step will, without running it."""
    value = jax.ShapeDtypeStruct(shape, jnp.float32)
    positions = jax.ShapeDtypeStruct(shape[:1], jnp.int32)
    own = [jax.ShapeDtypeStruct(arrays[i].shape, arrays[i].dtype) for i in change.places]
    call: Callable[..., jax.Array] = partial(call_intervention, change)
    try:
        result = jax.eval_shape(call, value, positions, *own)
    except Exception as error:
        raise RequestError(
            f"intervene[{change.point!r}] must be a pure JAX function; it cannot be compiled for "
            f"values of shape {shape}: {type(error).__name__}: {error}"
        ) from error
    if result.shape != shape:
        raise RequestError(
            f"intervene[{change.point!r}] turns values of shape {shape} into {result.shape}; "
            "expected the same shape."
        )
