"""An adapter in jengine's weight layout: two low-rank matrices per adapted `Linear`.

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
    ranks: tuple[int, ...] = ()  # per fused module, in order; (): a single module

    @property
    def rank(self) -> int:
        """Total rank of all modules in this weight."""
        return self.down.shape[1]


@dataclass(frozen=True)
class Adapter:
    """Low-rank updates by the path of their `Linear`; with groups, by `in_group`."""

    rank: int  # the largest rank of any module
    parts: Mapping[str, LowRank]

    @property
    def nbytes(self) -> int:
        return sum(part.down.nbytes + part.up.nbytes for part in self.parts.values())

    def merged(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Add the update to each weight, keeping its dtype. Returns parameters by path."""
        found = dict(parameters)
        for key, part in self.parts.items():
            path, group = without_group(key)
            weight = np.asarray(found[path + WEIGHT])
            total, own = weight.astype(np.float32), () if group is None else (group,)
            added = part.down @ part.up.reshape(part.rank, math.prod(part.up.shape[1:]))
            total[own] += added.reshape(total[own].shape)
            found[path + WEIGHT] = total.astype(weight.dtype)
        return found


def in_group(path: str, group: int | None) -> str:
    """Path of one matrix of a grouped `Linear`, such as an expert's: "path[3]". None: no groups."""
    return path if group is None else f"{path}[{group}]"


def without_group(path: str) -> tuple[str, int | None]:
    """Inverse of `in_group`."""
    own, _, rest = path.partition("[")
    return own, int(rest.removesuffix("]")) if rest else None
