"""Taps of a step while it is traced: called at the model's tap points, they capture values and
change those of the tokens whose rows asked for it."""

from __future__ import annotations

import inspect
from functools import partial

import jax.numpy as jnp
from jax import Array

from jengine.runner.variants.tap_sets import Intervention, TapSet
from jengine.sampling.callbacks import guarded


class StepTaps:
    """The tap of one step while it is traced. `captured` holds the captured values by point."""

    def __init__(self, sets: tuple[TapSet, ...], owners: Array, positions: Array) -> None:
        self.sets = sets
        self.owners = owners  # i32 [tokens]: the set of each token's row
        self.positions = positions
        # Number of a set -> tap point -> f32 [tokens, width].
        self.captured: dict[int, dict[str, Array]] = {
            taps.number: {} for taps in sets if taps.capture
        }

    def __call__(self, name: str, value: Array) -> Array:
        """Change the value for the rows that asked for that, then capture it if any row asks."""
        for taps in self.sets:
            for point, function in taps.intervene:
                if point == name:
                    call = guarded(partial(call_intervention, function), taps.raised.note)
                    changed = call(value, self.positions)
                    value = jnp.where((self.owners == taps.number)[:, None], changed, value)
        for taps in self.sets:
            if name in taps.capture:
                self.captured[taps.number][name] = value.astype(jnp.float32)
        return value


def call_intervention(function: Intervention, value: Array, positions: Array) -> Array:
    """The function's result in the dtype of `value`."""
    arguments = (value.astype(jnp.float32), positions)
    return jnp.asarray(function(*arguments[: takes(function)])).astype(value.dtype)


def takes(function: Intervention) -> int:
    """How many of (values, positions) a function takes, by its required parameters."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # functions written in C may have no signature: they get values
        return 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [
        one
        for one in parameters
        if one.kind in positional and one.default is inspect.Parameter.empty
    ]
    return min(max(len(required), 1), 2)
