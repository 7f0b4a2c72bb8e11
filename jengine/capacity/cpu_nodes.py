"""A memory node of a CPU as a device of a plan: what so many cores read, multiply and wait for.

In: cores and memory of a node. Out: an Accelerator. Rates of one core were measured (`python -m
jengine.bench.cpu_kernels`), on two cores of an AMD EPYC; that others have as much, up to what the
memory gives, is a model. Nodes share nothing: a replica of its own on each, bound to it, reads near
memory only.
"""

from __future__ import annotations

import math

from jengine.capacity.accelerators import Accelerator
from jengine.errors import ConfigError

GB_A_CORE = 4  # of memory, where none is given
# Of one core, measured.
CORE_BANDWIDTH, CORE_FLOPS = 32e9, 209e9
# Until a sleeping thread runs, and what waking it takes of its waker: medians of semaphores with no
# other work, 3,000 on the same processor. A virtual machine's: half of what the waker waits is its
# host's. Threads of XLA's that still spin are there sooner.
WAKING, STARTING = 5e-6, 6e-6
# Threads that each thread of a call wakes (pallas_kernels/cpu/source/tasks.h).
WOKEN_BY_EACH = 2
# Twelve channels of DDR5-4800, by the data sheet.
NODE_BANDWIDTH = 460e9
# Queries with keys and values, attention, its output, gate and up, down, and writing to the cache.
CALLS_A_LAYER = 6.0
PANEL, BLOCK_ROWS = 32, 12  # outputs and rows of the smallest task of a matmul


def memory_node(cores: int, gigabytes: float | None) -> Accelerator:
    """A memory node whose cores all run each kernel together."""
    if cores < 1:
        raise ConfigError(f"--cores {cores}: expected 1 or more.")
    memory = GB_A_CORE * cores if gigabytes is None else gigabytes
    if memory <= 0:
        raise ConfigError(f"--node-gb {memory:g}: expected more than 0.")
    return Accelerator(
        f"node of {cores} cores", memory * 1e9, min(cores * CORE_BANDWIDTH, NODE_BANDWIDTH),
        cores * CORE_FLOPS, link=32e9, link_name="between nodes",
        source="one core measured, times cores, at most the memory's data sheet", cores=cores,
    )  # fmt: skip


def waiting(cores: int) -> float:
    """Start-up delay of a kernel, in seconds, until all threads work or enough to saturate the
    memory."""
    needed = min(cores, math.ceil(NODE_BANDWIDTH / CORE_BANDWIDTH))
    return sorted(work_begins(cores))[needed - 1]


def work_begins(threads: int) -> list[float]:
    """Time at which each thread of a call starts its tasks; threads wake each other as a tree."""
    awake = [0.0]
    for thread in range(1, threads):
        waker, earlier = divmod(thread - 1, WOKEN_BY_EACH)
        awake.append(awake[waker] + earlier * STARTING + WAKING)
    woken = (min(max(threads - 1 - WOKEN_BY_EACH * thread, 0), WOKEN_BY_EACH)
             for thread in range(threads))  # fmt: skip
    return [at + count * STARTING for at, count in zip(awake, woken, strict=True)]


def busy(outputs: int, rows: int, cores: int) -> float:
    """Utilisation of the cores in a matmul, whose tasks are whole panels of outputs by whole blocks
    of rows."""
    tasks = -(-outputs // PANEL) * -(-rows // BLOCK_ROWS)
    return tasks / (cores * -(-tasks // cores))


def assumed_of(cores: int, outputs: int, rows: int) -> dict[str, float]:
    """Assumptions of plans for such nodes; `outputs`: of a layer's narrowest matmul."""
    return {
        "bandwidth_share": 0.9 * busy(outputs, rows, cores),
        "decode_launches": CALLS_A_LAYER,
        "prefill_launches": CALLS_A_LAYER,
        "between_launches": waiting(cores),
    }
