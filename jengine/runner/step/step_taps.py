"""Taps of a traced step: capture activations at the model's tap points, and apply interventions to
the rows that requested them.

A plan names a tap set by number; the callbacks stay in the runner and are traced into separate
programs. A tapped request reads no cached prefix, and its blocks are hit only by requests with the
same taps.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from jengine.runner.variants.tap_sets import Change, Intervention, TapSet
from jengine.sampling.callbacks import guarded


class StepTaps:
    """The tap of one step while it is traced. `captured` holds the captured values by point."""

    def __init__(
        self,
        sets: tuple[TapSet, ...],
        owners: Array,
        positions: Array,
        arrays: Sequence[Array] = (),
    ) -> None:
        self.sets = sets
        self.owners = owners  # i32 [tokens]: tap set number of each token's request
        self.positions = positions
        given = iter(arrays)
        self._arrays = {taps.number: [next(given) for _ in taps.shapes] for taps in sets}
        # A set's first number and their count -> tap point -> f32 [tokens, width].
        self.captured: dict[tuple[int, int], dict[str, Array]] = {
            (taps.number, taps.variants): {} for taps in sets if taps.capture
        }

    def __call__(self, name: str, value: Array) -> Array:
        """Apply interventions to the tokens of their requests, then capture the value if any set
        does."""
        for taps in self.sets:
            for change in taps.intervene:
                if change.point == name:
                    value = self._changed(taps, change, value)
        for taps in self.sets:
            if name in taps.capture:
                found = self.captured[taps.number, taps.variants]
                found[name] = value.astype(jnp.float32)
        return value

    def _changed(self, taps: TapSet, change: Change, value: Array) -> Array:
        variant = self.owners - taps.number
        arrays = [self._arrays[taps.number][place] for place in change.places]
        if taps.variants > 1:  # each token gets its request's arrays
            own = jnp.clip(variant, 0, taps.variants - 1)
            arrays = [array[own] for array in arrays]
        call = guarded(partial(call_intervention, change), taps.raised.note)
        changed = call(value, self.positions, *arrays)
        is_own = (variant >= 0) & (variant < taps.variants)
        return jnp.where(is_own[:, None], changed, value)


def call_intervention(change: Change, value: Array, positions: Array, *arrays: Array) -> Array:
    """The function's result in the dtype of `value`."""
    values = value.astype(jnp.float32)
    return jnp.asarray(change.function(*arguments(change, values, positions, arrays))).astype(
        value.dtype
    )


def arguments(
    change: Change, values: Array, positions: Array, arrays: Sequence[Array]
) -> Iterator[object]:
    """Arguments of an intervention: values, positions if it takes them, and its own arrays."""
    behind = () if change.tree is None else (jax.tree.unflatten(change.tree, arrays),)
    yield values
    if takes(change.function) > 1 + len(behind):
        yield positions
    yield from behind


def takes(function: Intervention) -> int:
    """How many of (values, positions, arrays) a function takes, by its required parameters."""
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
    return max(len(required), 1)
