"""Reads the parameters of a running engine from its folder again.

In: the engine's settings and where its model came from. Out: leaves, in the memory of old ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jengine.assembly.model_facts import ModelSource
from jengine.assembly.model_source import load_parameters
from jengine.assembly.settings.groups import ModelSettings
from jengine.runner.step.leaves import LeafOrder, Leaves


def weights_reader(
    asked: ModelSettings, source: ModelSource, order: LeafOrder, bar: Callable[..., Any]
) -> Callable[[Leaves | None], Leaves] | None:
    """Reads a replica's parameters; None for live ones, which are in no folder."""
    if source.folder is None or asked.params is not None:
        return None

    def read(into: Leaves | None) -> Leaves:
        _, values = load_parameters(asked, source, order.places, bar)
        return order.leaves(values, into=into)

    return read
