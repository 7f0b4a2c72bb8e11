"""Rows of numbers as responses have them: lists, base64, or raw bytes."""

from __future__ import annotations

import base64
import sys
from typing import Any

import ml_dtypes
import numpy as np

from jengine.server.pooling.fields import EncodedFields

DTYPES: dict[str, Any] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
}


def raw_bytes(data: np.ndarray, request: EncodedFields) -> bytes:
    """Cast to the requested dtype and byte order."""
    found = np.ascontiguousarray(data.astype(DTYPES[request.embed_dtype or "float32"]))
    wanted = request.endianness or "native"
    if wanted in ("native", sys.byteorder) or found.itemsize == 1:
        return found.tobytes()
    return found.view(f"u{found.itemsize}").byteswap().tobytes()


def encoded(data: np.ndarray, request: EncodedFields) -> list[Any] | str:
    """Encode numbers for JSON: a list, or base64."""
    if request.encoding_format == "base64":
        return base64.b64encode(raw_bytes(data, request)).decode("ascii")
    return data.tolist()
