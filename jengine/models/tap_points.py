"""Tap points: named places where a step may capture or replace activations.

A tap is a function (name, value) that returns the value the model continues with; models pass every
tap point's value through `StepContext.tap`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jax import Array

from jengine.config import ModelConfig

Tap = Callable[[str, Array], Array]
# In the order of computation within a layer.
LAYER_POINTS = ("attention", "mlp", "output")


class TapPoint(NamedTuple):
    """One tap point. Its value is a vector of the hidden size per token."""

    name: str
    meaning: str


MEANINGS = {
    "embed": "what enters the first layer",
    "attention": "what attention adds to the residual stream",
    "mlp": "what the MLP or the experts add to the residual stream",
    "output": "the residual stream after the layer",
    "norm": "the final norm's output, which the head reads",
}


def tap_points(config: ModelConfig) -> list[TapPoint]:
    """All tap points of a model, in execution order."""
    layers = [
        TapPoint(f"layers.{layer}.{point}", MEANINGS[point])
        for layer in range(len(config.layers))
        for point in LAYER_POINTS
    ]
    return [
        TapPoint("embed", MEANINGS["embed"]),
        *layers,
        TapPoint("norm", MEANINGS["norm"]),
    ]
