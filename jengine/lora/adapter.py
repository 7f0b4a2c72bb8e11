"""An adapter in the form of our weights: for each adapted `Linear` two matrices of low rank.

In: a model's parameters. Out: parameters with an adapter merged in. Must not know files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

WEIGHT = ".weight"


@dataclass(frozen=True)
class LowRank:
    """What an adapter adds to a weight [*inputs, *outputs]: down @ up.

    A weight that several modules of the checkpoint share has their ranks one after the other; `up`
    is zero where a rank is not that of an output. Scales are part of `up`.
    """

    down: np.ndarray  # f32 [inputs, rank]
    up: np.ndarray  # f32 [rank, *outputs]
    ranks: tuple[int, ...] = ()  # of each module that shares the weight, in order; (): one

    @property
    def rank(self) -> int:
        """The sum of the modules' ranks."""
        return self.down.shape[1]


@dataclass(frozen=True)
class Adapter:
    """An adapter's parts by the path of their `Linear`."""

    rank: int  # the largest of a module
    parts: Mapping[str, LowRank]

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.down.nbytes + part.up.nbytes for part in self.parts.values())

    def merged(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters by path, with this adapter added to the weights, in their own dtypes."""
        found = dict(parameters)
        for path, part in self.parts.items():
            weight = np.asarray(parameters[path + WEIGHT])
            added = part.down @ part.up.reshape(part.rank, math.prod(part.up.shape[1:]))
            total = weight.astype(np.float32) + added.reshape(weight.shape)
            found[path + WEIGHT] = total.astype(weight.dtype)
        return found
