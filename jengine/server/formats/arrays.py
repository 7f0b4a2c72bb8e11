"""Arrays in JSON: numpy's own file format, as base64."""

from __future__ import annotations

import base64
import io

import numpy as np


def npy_base64(array: np.ndarray | None) -> str | None:
    """The bytes of a .npy file as base64, which `numpy.load` reads; None for None."""
    if array is None:
        return None
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return base64.b64encode(file.getbuffer()).decode("ascii")
