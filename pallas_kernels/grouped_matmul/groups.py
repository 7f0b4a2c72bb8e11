"""Rows by group, as all functions of this package take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jax import Array

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Int


class Groups(NamedTuple):
    """An order of rows, group by group, with padding at the end."""

    order: Int[Array, " rows"]  # the row at each place
    sizes: Int[Array, " groups"]  # the number of rows of each group
    # Of each tile of rows: its group, where the group starts and ends, and the group's first tile.
    # Only kernels read it.
    tiles: Int[Array, "tiles 4"] | None = None


def addend_dtype(dtype: np.dtype) -> np.dtype:
    """The type of addends of `combine_rows`: the weight's, if its range is that of float32."""
    return np.dtype(np.float32) if dtype == np.float16 else np.dtype(dtype)
