"""Fields of a section of the packed input: shape, dtype and padding."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Field(NamedTuple):
    """One array of a section."""

    shape: tuple[int, ...]
    dtype: str = "int32"
    padding: int | np.ndarray = 0


# A list where a field holds one array per cache group.
Fields = dict[str, Field | list[Field]]
