"""Advice for device errors, by their message. No jax.

In: a device error and what the engine was doing. Out: advice, or a CapacityError that includes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import NamedTuple

from jengine.errors import CapacityError


class Doing(Enum):
    """The engine's activity during a device error."""

    WEIGHTS = "placing the weights"
    COMPILE = "compiling a program"
    CACHE = "making the KV cache"
    STEP = "running a step"


OUT_OF_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|out of memory|OUT_OF_MEMORY", re.IGNORECASE)
GRAPHS = re.compile(r"command buffer|cu(da )?(da)?graph", re.IGNORECASE)
GRAPH_ROOM = (
    "CUDA graphs take memory outside of JAX's pool: lower gpu_memory_utilization, or compile fewer "
    "sizes with compilation_config={'decode_rows': [...]}."
)
ROOM = {
    Doing.WEIGHTS: "The weights do not fit: use quantization='int4' or dtype='bfloat16', more "
    "devices (tensor_parallel_size), or cpu_offload_gb. End other processes on the device.",
    Doing.COMPILE: "The compiler runs candidates beside the weights: lower max_num_batched_tokens, "
    "use quantization='int4' or more devices, and end other processes on the device.",
    Doing.CACHE: "Lower gpu_memory_utilization or set kv_cache_memory_bytes, and end other "
    "processes on the device.",
    Doing.STEP: "Lower gpu_memory_utilization, so that the KV cache leaves more, or "
    "max_num_batched_tokens.",
}


class Known(NamedTuple):
    """A known device error: its name, the pattern that identifies it, and advice."""

    name: str
    words: re.Pattern[str]
    todo: str


KNOWN = (
    Known(
        "the driver is too old",
        re.compile(r"driver version is insufficient|SYSTEM_DRIVER_MISMATCH|UNSUPPORTED_PTX|"
                   r"unsupported toolchain|NO_BINARY_FOR_GPU|no kernel image"),
        "The NVIDIA driver is older than the CUDA packages, or these than the device: update the "
        "driver, or install the extra that `jengine doctor` names.",
    ),
    Known(
        "libraries do not match",
        re.compile(r"CUDNN_STATUS|CuDNN library|CUBLAS_STATUS_NOT_INITIALIZED|"
                   r"cannot open shared object|Unable to load cu"),
        "CUDA's libraries are not those that JAX was built with: unset LD_LIBRARY_PATH, and "
        "install jengine[cuda12] or jengine[cuda13] again with --upgrade.",
    ),
    Known(
        "devices cannot reach one another",
        re.compile(r"peer access|PEER_ACCESS|NCCL", re.IGNORECASE),
        "Set NCCL_P2P_DISABLE=1 if the devices have no peer access (`jengine doctor` tells), and "
        "NCCL_DEBUG=INFO to see what NCCL says. In containers /dev/shm must be large.",
    ),
    Known(
        "a kernel failed",
        re.compile(r"ILLEGAL_ADDRESS|illegal memory access|LAUNCH_FAILED|ECC|MISALIGNED"),
        "Start again with attention_backend='xla': if that works, the kernels are at fault, which "
        "is worth a report. `dmesg | grep Xid` tells of broken devices.",
    ),
)  # fmt: skip


def advice(error: BaseException | str, doing: Doing) -> str:
    """Advice for a known device error; "" for others."""
    text = str(error)
    if OUT_OF_MEMORY.search(text):
        return GRAPH_ROOM if GRAPHS.search(text) else ROOM[doing]
    return next((one.todo for one in KNOWN if one.words.search(text)), "")


@contextmanager
def explained(kind: type[Exception], doing: Doing) -> Iterator[None]:
    """Raise errors of this kind as CapacityError, with advice where the error is known."""
    try:
        yield
    except kind as error:
        told = f"{doing.value} failed: {type(error).__name__}: {error} {advice(error, doing)}"
        raise CapacityError(told.rstrip()) from error
