"""A memory node of a CPU as a device of a plan: what so many cores read, multiply and wait for.

In: cores and memory of a node. Out: an Accelerator. Rates of one core were measured (`python -m
jengine.bench.cpu_kernels`), on two cores of an AMD EPYC; that others have as much, up to what the
memory gives, is a model. Nodes share nothing: a replica of its own on each, bound to it, reads near
memory only.
"""

from __future__ import annotations

from jengine.capacity.accelerators import Accelerator
from jengine.errors import ConfigError

GB_A_CORE = 4  # of memory, where none is given
# Of one core, measured.
CORE_BANDWIDTH, CORE_FLOPS = 32e9, 209e9
# Until a sleeping thread runs, and what waking each further one takes of the caller: measured with
# semaphores. Threads of XLA's that still spin are there sooner.
WAKING, STARTING = 6e-6, 3e-6
# Twelve channels of DDR5-4800, by the data sheet.
NODE_BANDWIDTH = 460e9
# Queries with keys and values, attention, its output, gate and up, down, and writing to the cache.
CALLS_A_LAYER = 6.0
PANEL, BLOCK_ROWS = 32, 12  # outputs and rows of the smallest task of a matmul


def memory_node(cores: int, gigabytes: float | None) -> Accelerator:
    """A node whose kernels all its cores run together."""
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
    """Seconds of each kernel until all threads run: the caller starts one after the other."""
    return 0.0 if cores == 1 else WAKING + (cores - 1) * STARTING


def busy(outputs: int, rows: int, cores: int) -> float:
    """The share of all cores' time in which they have a task of a matmul: tasks are whole panels of
    outputs for whole blocks of rows."""
    tasks = -(-outputs // PANEL) * -(-rows // BLOCK_ROWS)
    return tasks / (cores * -(-tasks // cores))


def assumed_of(cores: int, outputs: int, rows: int) -> dict[str, float]:
    """What a plan for such nodes assumes; `outputs` are those of a layer's narrowest matmul."""
    return {
        "bandwidth_share": 0.9 * busy(outputs, rows, cores),
        "decode_launches": CALLS_A_LAYER,
        "prefill_launches": CALLS_A_LAYER,
        "between_launches": waiting(cores),
    }
