"""Returns freed memory to the system: compiling a program frees hundreds of megabytes, which glibc
would keep."""

from __future__ import annotations

import ctypes
from functools import cache


@cache
def _trim() -> ctypes._FuncPointer | None:
    """glibc's malloc_trim; None on other systems."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return trim


def give_back_freed_memory() -> bool:
    """Trim the heap. Returns whether any memory was returned to the system."""
    trim = _trim()
    return trim is not None and bool(trim(0))
