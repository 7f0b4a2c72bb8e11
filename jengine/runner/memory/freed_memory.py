"""Gives memory that was freed back to the system, where the allocator would keep it.

A compiler frees hundreds of megabytes a program, and glibc keeps them for the next; an engine that
has compiled everything would hold them to its end.
"""

from __future__ import annotations

import ctypes
from functools import cache


@cache
def _trim() -> ctypes._FuncPointer | None:
    """glibc's own way; other systems have none, or need none."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return trim


def give_back_freed_memory() -> bool:
    """Whether anything could be given back."""
    trim = _trim()
    return trim is not None and bool(trim(0))
