"""Memory of an NVIDIA GPU by its driver, for XLA allocators without statistics.

In: a device's index among those visible to the process. Out: bytes. Must not know JAX.
"""

from __future__ import annotations

import ctypes

LIBRARY = "libcuda.so.1"


def driver_memory(number: int) -> tuple[int, int] | None:
    """(free, total) bytes of a GPU; None without NVIDIA's driver, or if a call fails."""
    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    device, context = ctypes.c_int(), ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), number):
        return None
    # The primary context, which XLA has created already.
    if cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
        return None
    try:
        if cuda.cuCtxPushCurrent_v2(context):
            return None
        refused = cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    finally:
        cuda.cuDevicePrimaryCtxRelease_v2(device)
    return None if refused else (free.value, total.value)
