"""MapTo: destination and layout of another library's array in a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class MapTo:
    """Where `update_params(tree, mapping=...)` puts an array of a tree, and how it is laid out.

    Args:
        name: its Hugging Face name, such as "model.layers.{layer}.mlp.up_proj.weight", with the
            pattern's placeholders. Several names: the array is split along its outputs.
        inputs: number of leading axes that are a matmul's inputs: [inputs..., outputs...] is
            flattened and transposed to [outputs, inputs].
        outputs: number of leading axes that are outputs: they are flattened, without a transpose.
        stacked: the axis along which layers are stacked; `{layer}` is the index.
        sizes: the outputs of each of several names; None: equal parts.
    """

    name: str | tuple[str, ...]
    inputs: int | None = None
    outputs: int | None = None
    stacked: int | None = None
    sizes: tuple[int, ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,) if isinstance(self.name, str) else self.name

    def laid_out(self, array: Any, layer: int | None, part: int) -> Any:
        """One checkpoint tensor cut from the array, in the checkpoint's layout."""
        if self.stacked is not None:
            array = array[(slice(None),) * (self.stacked % array.ndim) + (layer,)]
        first = self.inputs if self.inputs is not None else self.outputs
        if first is not None:
            sizes = [math.prod(array.shape[:first]), math.prod(array.shape[first:])]
            array = array.reshape(sizes if first < array.ndim else sizes[:1])
            array = array.T if self.inputs is not None else array
        if len(self.names) == 1:
            return array
        equal = (array.shape[0] // len(self.names),) * len(self.names)
        ends = np.cumsum([0, *(self.sizes or equal)])
        return array[int(ends[part]) : int(ends[part + 1])]


# Path pattern -> destination; None: the array is skipped. `{layer}` in a pattern matches one path
# component, `{module:path}` one or more.
Rules = Mapping[str, MapTo | str | None]
