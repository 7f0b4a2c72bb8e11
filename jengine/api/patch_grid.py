"""Activation patching over a grid of tap points and positions of one prompt, as one batch of
requests.

In: activations by tap point, such as captures of another prompt. Out: the last hidden state for
each patch. All requests run in one program, with patches as operands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jengine.api.interventions import NOWHERE, Applied, PatchOfGrid
from jengine.errors import RequestError
from jengine.outputs import RequestOutput
from pallas_kernels.shapes import next_power_of_two


class PatchGrid(NamedTuple):
    """A prompt's last hidden state under each of many patches.

    `llm.unembed(grid.hidden)` are the logits of the next token, [points, positions, vocab].
    """

    points: list[str]
    positions: list[int]
    hidden: np.ndarray  # f32 [points, positions, width]: inputs of the output head


@dataclass(frozen=True)
class Grid:
    """The patches of a grid: every point with every position."""

    points: list[str]
    positions: list[int]
    values: np.ndarray  # f32 [points, positions, width]

    @property
    def count(self) -> int:
        return len(self.points) * len(self.positions)

    @property
    def applied(self) -> dict[str, Applied]:
        """Tap point -> its change. Arrays have one item per patch, padded to `variants` items so
        that grids of similar size share a program."""
        points, positions, width = self.values.shape
        count = self.variants
        of_point = np.full(count, NOWHERE, np.int32)
        place = np.full(count, NOWHERE, np.int32)
        values = np.zeros((count, width), np.float32)
        of_point[: self.count] = np.repeat(np.arange(points), positions)
        place[: self.count] = np.tile(self.positions, points)
        values[: self.count] = self.values.reshape(-1, width)
        arrays = (of_point, place, values)  # shared by all points: one copy in the step
        return {name: Applied(PatchOfGrid(i), arrays) for i, name in enumerate(self.points)}

    @property
    def variants(self) -> int:
        """Patches, padded to a power of two."""
        return next_power_of_two(self.count)


def checked_grid(
    values: Any, positions: Sequence[int] | None, length: int, known: Sequence[str], width: int
) -> Grid:
    """Validate a grid of patches for a prompt of `length` tokens. Raises RequestError."""
    if not isinstance(values, Mapping) or not values:
        raise RequestError(
            f"patch_grid: values are a {type(values).__name__}; expected a dict of tap point to "
            "values [tokens, width] that is not empty, such as the `captured` of an output."
        )
    unknown = [name for name in values if name not in known]
    if unknown:
        raise RequestError(f"patch_grid: there is no tap point {unknown[0]!r}; see llm.tap_points.")
    places = list(range(length)) if positions is None else [int(one) for one in positions]
    if not places or not all(0 <= one < length for one in places):
        raise RequestError(
            f"patch_grid: positions={positions!r:.60}; expected tokens of the prompt, from 0 to "
            f"{length - 1}."
        )
    found = [np.asarray(one, np.float32) for one in values.values()]
    for name, one in zip(values, found, strict=True):
        if one.ndim != 2 or one.shape[1] != width or len(one) <= max(places):
            raise RequestError(
                f"patch_grid: the values of {name} have shape {one.shape}; expected (tokens, "
                f"{width}) with {max(places) + 1} tokens or more. Capture them on a prompt of the "
                "same length, or name positions that both have."
            )
    return Grid(list(values), places, np.stack([one[places] for one in found]))


def last_hidden(grid: Grid, outputs: Sequence[RequestOutput]) -> PatchGrid:
    """Build a grid's result from each request's capture at `norm`."""
    rows = []
    for output in outputs:
        if output.error or output.captured is None:
            raise RequestError(f"patch_grid: request {output.request_id}: {output.error}")
        rows.append(output.captured["norm"][-1])
    return PatchGrid(grid.points, grid.positions, np.stack(rows).reshape(grid.values.shape))
