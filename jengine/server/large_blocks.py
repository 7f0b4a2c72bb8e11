"""Large blocks of memory go back to the system when they are freed.

glibc maps large blocks by themselves, but once it has seen some freed it keeps blocks of up to
32 MiB on the heap, where what is small and lives on pins the holes that long texts leave: a server
would grow by what strangers send. Not for a process that runs steps, which reuses large blocks.
"""

from __future__ import annotations

import ctypes
from typing import Final

M_MMAP_THRESHOLD: Final = -3  # of glibc
LARGE = 2**20


def return_large_blocks() -> None:
    """Make glibc return freed blocks of 1 MiB and more to the system, by mallopt."""
    try:
        tune = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    tune(M_MMAP_THRESHOLD, LARGE)
