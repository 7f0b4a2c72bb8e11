"""Checks taps, which capture or change values inside the model, before a step uses them.

In: tap names (with * for any layer) and functions. Out: names that exist, functions that trace.
A function that fails later would stop the engine, so each is tried on every shape a step has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp

from jengine.config import ModelConfig
from jengine.errors import RequestError, UnsupportedFeature, nearest_name
from jengine.models.taps import tap_points
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.step.taps import call_intervention
from jengine.runner.variants.tap_sets import Intervention
from sharding.jax_settings import engine_context


def opened_taps(
    loaded: LoadedModel, config: ModelConfig, capture: Any, intervene: Any
) -> AbstractContextManager[int]:
    """Register the taps with the runner until the block ends; yields their number in plans."""
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
    names = [name for pattern in wanted for name in matching("capture", pattern, points)]
    changes = interventions(intervene, points)
    tokens = sorted({bucket.num_tokens for bucket in loaded.ladders.buckets()})
    for name, function in changes.items():
        for count in tokens:
            check_function(name, function, (count, config.hidden_size))
    return loaded.taps.opened(list(dict.fromkeys(names)), changes)


def refuse_divided(loaded: LoadedModel, given: Sequence[str]) -> None:
    """Refuse taps on a pipeline, whose stages run different tokens at the same time, and where the
    tokens of a step are in the order of devices."""
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


def interventions(given: Any, points: list[str]) -> dict[str, Intervention]:
    """Tap name -> function, with patterns spelled out."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise RequestError(
            f"intervene is a {type(given).__name__}; expected a dict of tap name to function, such "
            "as {'layers.3.output': lambda x: 0.9 * x}."
        )
    changes: dict[str, Intervention] = {}
    for pattern, function in given.items():
        if not callable(function):
            raise RequestError(
                f"intervene[{pattern!r}] is a {type(function).__name__}; expected a function of "
                "values [tokens, width], or of values and positions [tokens]."
            )
        changes.update(dict.fromkeys(matching("intervene", pattern, points), function))
    return changes


def matching(argument: str, pattern: Any, points: Iterable[str]) -> list[str]:
    """The tap points that a name or pattern means; an error if there are none."""
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
def check_function(name: str, function: Intervention, shape: tuple[int, int]) -> None:
    """Trace an intervention as a step will, without running it."""
    value = jax.ShapeDtypeStruct(shape, jnp.float32)
    positions = jax.ShapeDtypeStruct(shape[:1], jnp.int32)
    try:
        result = jax.eval_shape(
            lambda value, positions: call_intervention(function, value, positions), value, positions
        )
    except Exception as error:
        raise RequestError(
            f"intervene[{name!r}] must be a pure JAX function; it cannot be compiled for values of "
            f"shape {shape}: {type(error).__name__}: {error}"
        ) from error
    if result.shape != shape:
        raise RequestError(
            f"intervene[{name!r}] turns values of shape {shape} into {result.shape}; "
            "expected the same shape."
        )
