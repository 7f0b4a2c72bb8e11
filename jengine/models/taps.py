"""Tap points: the named places of a decoder where a step may capture or change values.

A tap is a function of a name and a value that returns the value the model goes on with. Models pass
every point's value through `StepContext.tap`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jax import Array

from jengine.config import ModelConfig

Tap = Callable[[str, Array], Array]
# In the order in which values flow through a layer.
LAYER_POINTS = ("attention", "mlp", "output")


class TapPoint(NamedTuple):
    """One place, and what passes it for every token: a vector of the model's width."""

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
    """Every tap point of a model, in the order in which values pass them."""
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
