"""A plan's entries as arrays, made once per step for everything that packs it. Pure numpy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jengine.plan import TOKENS, Plan


class PlanArrays(NamedTuple):
    """Item i of each array belongs to entry i. Decodes come first."""

    rows: np.ndarray  # i32
    starts: np.ndarray  # i32
    lengths: np.ndarray  # i32
    samples: np.ndarray  # bool: whether the entry wants tokens
    num_decodes: int
    repeats: int


def plan_arrays(plan: Plan) -> PlanArrays:
    """The arrays of a plan."""
    entries = plan.entries
    return PlanArrays(
        np.array([entry.row for entry in entries], np.int32),
        np.array([entry.start for entry in entries], np.int32),
        np.array([entry.length for entry in entries], np.int32),
        np.array([entry.wanted is TOKENS for entry in entries], bool),
        plan.num_decodes,
        plan.repeats,
    )
