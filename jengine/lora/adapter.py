"""An adapter in the layout of our weights: two low-rank matrices per adapted `Linear`.

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
    """Low-rank update of a weight [*inputs, *outputs]: down @ up, with the scale folded into `up`.

    Checkpoint modules fused into one weight have their ranks concatenated; `up` is zero where a
    rank does not belong to the output's module.
    """

    down: np.ndarray  # f32 [inputs, rank]
    up: np.ndarray  # f32 [rank, *outputs]
    ranks: tuple[int, ...] = ()  # of each module that shares the weight, in order; (): one

    @property
    def rank(self) -> int:
        """Total rank of all modules in this weight."""
        return self.down.shape[1]


@dataclass(frozen=True)
class Adapter:
    """An adapter's updates by the path of their `Linear`."""

    rank: int  # the largest of a module
    parts: Mapping[str, LowRank]

    @property
    def nbytes(self) -> int:
        return sum(part.down.nbytes + part.up.nbytes for part in self.parts.values())

    def merged(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Add the update to each weight, keeping its dtype. Returns parameters by path."""
        found = dict(parameters)
        for path, part in self.parts.items():
            weight = np.asarray(parameters[path + WEIGHT])
            added = part.down @ part.up.reshape(part.rank, math.prod(part.up.shape[1:]))
            total = weight.astype(np.float32) + added.reshape(weight.shape)
            found[path + WEIGHT] = total.astype(weight.dtype)
        return found
