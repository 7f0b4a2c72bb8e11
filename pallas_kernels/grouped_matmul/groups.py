"""Rows sorted by group, as returned by every implementation of `sort_by_group`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jax import Array

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Int


class RowGroups(NamedTuple):
    """A permutation of rows by group, with padding at the end."""

    order: Int[Array, " rows"]  # the row at each place
    sizes: Int[Array, " groups"]  # the number of rows of each group
    # Of each tile of rows: its group, where the group starts and ends, and the group's first tile.
    # Only kernels read it.
    tiles: Int[Array, "tiles 4"] | None = None


def addend_dtype(dtype: np.dtype) -> np.dtype:
    """Dtype of addends in `combine_rows`: the weight's, or float32 for float16, whose range is too
    small."""
    return np.dtype(np.float32) if dtype == np.float16 else np.dtype(dtype)
