"""What bounds each CPU kernel at each number of rows: memory, arithmetic or waiting for threads.

    python -m jengine.bench.cpu_kernels [--rows 1 8 64 512] [--output-json FILE]

One process with a single thread and one with all of them measure, one after the other: how fast
they read memory and multiply from their caches, and each kernel, over weights that no cache holds.
A kernel cannot take less than its bytes over the rate of reading, or its operations over that of
multiplying. Threads wait where all of them take longer than those two, and than a single one's time
divided by their number. To be kept, run it while nothing else runs.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jengine.bench.frame import Benchmark
from jengine.bench.machine import cores
from jengine.errors import ConfigError
from jengine.layers.initializer import Initializer
from jengine.models.quantized import ON_LOAD
from jengine.quantization.cpu import PACKED
from jengine.quantization.cpu_codes import CpuCodes
from jengine.quantization.quantized import QuantizedWeights
from jengine.quantization.scheme import Specs, Tensors, WeightScheme, WeightShape
from jengine.weight_formats import WeightFormat
from pallas_kernels.cache_write import empty_cache
from pallas_kernels.choice import cpu_instructions, cpu_problem
from pallas_kernels.decode_attention import decode_attention
from pallas_kernels.layout import BFLOAT16_BITS

FORMATS = {
    "int8": ON_LOAD["int8"],
    "int4": ON_LOAD["int4"],
    "int8, rows in int8": WeightFormat("int8", activations="int8"),
    "int4, rows in int8": WeightFormat("int4", activations="int8"),
}
SCHEMES: dict[str, WeightScheme] = {
    "bfloat16": PACKED,
    **{name: CpuCodes(QuantizedWeights(one, "bfloat16")) for name, one in FORMATS.items()},
}
ATTENTION = "attention"
# A weight that stays in one core's second-level cache, and rows enough for all threads.
CACHED, CACHED_ROWS = 512, 768
HEADS, KV_HEADS, HEAD_DIM, BLOCK = 16, 4, 64, 16
FEWEST = 5  # timings of each kind


class KernelCalls(NamedTuple):
    """Calls of one kernel that follow each other through memory, and what each has to do."""

    run: Callable[[], Any]
    bytes: int
    operations: int


def matmul(scheme: WeightScheme, rows: int, sizes: tuple[int, int], memory: int) -> KernelCalls:
    """A matmul with one of as many equal weights as fill this memory."""
    weight = WeightShape((sizes[0],), (sizes[1],), (None, None))
    declared = scheme.declared(weight, jnp.bfloat16, Initializer())
    first = scheme.prepare(weight, random_tensors(declared))
    size = sum(array.nbytes for array in first.values())
    weights = cycle([jax.tree.map(jnp.copy, first) for _ in range(-(-memory // size) or 1)])
    multiply = jax.jit(lambda x, tensors: scheme.multiply(weight, x, tensors))
    x = jnp.asarray(np.random.default_rng(1).normal(size=(rows, sizes[0])), jnp.float32)
    moved = size + 4 * rows * sum(sizes)
    return KernelCalls(lambda: multiply(x, next(weights)), moved, 2 * rows * sizes[0] * sizes[1])


def random_tensors(specs: Specs) -> Tensors:
    """Any codes, and scales of a usual size."""
    draw = np.random.default_rng(0)
    found = {}
    for name, spec in specs.items():
        is_code = jnp.issubdtype(spec.dtype, jnp.integer)
        made = draw.integers(0, 127, spec.shape) if is_code else draw.uniform(0.01, 0.1, spec.shape)
        found[name] = jnp.asarray(made, spec.dtype)
    return found


def attention(rows: int, context: int, memory: int) -> KernelCalls:
    """Decode attention to one of as many layers of a cache as fill this memory."""
    pages, width = -(-context // BLOCK), KV_HEADS * HEAD_DIM
    size = 4 * rows * pages * BLOCK * width
    layers = -(-memory // size) or 1
    shape = (layers, 2, rows * pages, BLOCK, width)
    # In large pages, as an engine's.
    cache = jax.jit(lambda: empty_cache(shape, BFLOAT16_BITS, "cpu"))()
    tables = jnp.arange(rows * pages, dtype=jnp.int32).reshape(rows, pages)
    starts, lengths = jnp.zeros(rows, jnp.int32), jnp.full(rows, context, jnp.int32)
    q = jnp.ones((rows, HEADS, HEAD_DIM), jnp.float32)
    numbers = cycle([jnp.asarray(layer, jnp.int32) for layer in range(layers)])

    def run() -> Array:
        return decode_attention(
            q, cache, next(numbers), tables, starts, lengths, head_dim=HEAD_DIM,
            implementation="cpu",
        )  # fmt: skip

    return KernelCalls(run, size, 4 * rows * context * HEADS * HEAD_DIM)


def fastest(run: Callable[[], Any], seconds: float) -> float:
    """The shortest of the runs that fit into a time, in seconds; those before it warm up."""
    for _ in range(2):
        jax.block_until_ready(run())
    found: list[float] = []
    end = time.perf_counter() + seconds
    while len(found) < FEWEST or time.perf_counter() < end:
        begin = time.perf_counter()
        jax.block_until_ready(run())
        found.append(time.perf_counter() - begin)
    return min(found)


def read_rate(threads: int, memory: int, seconds: float) -> float:
    """Bytes per second that so many threads read together, by the C library's search for a byte."""
    search = ctypes.CDLL(None).memchr
    search.argtypes, search.restype = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t), None
    data = np.full(memory, 2, np.uint8)
    parts = np.array_split(data, threads)
    with ThreadPoolExecutor(threads) as pool:

        def run() -> None:
            list(pool.map(lambda part: search(part.ctypes.data, 1, part.size), parts))

        return memory / fastest(run, seconds)


def measured(args: argparse.Namespace, threads: int) -> dict[str, Any]:
    """Rates and seconds of this process, which may use so many cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    if problem := cpu_problem():
        raise ConfigError(f"The CPU kernels cannot run here: {problem}")
    memory, seconds = args.mb << 20, args.seconds
    return {
        "threads": threads,
        "instructions": cpu_instructions(),
        "bytes_per_s": read_rate(threads, memory, seconds),
        "operations_per_s": {name: multiply_rate(one, seconds) for name, one in SCHEMES.items()},
        "kernels": [
            {"kernel": name, "rows": rows, "bytes": kernel.bytes, "operations": kernel.operations,
             "seconds": fastest(kernel.run, seconds)}
            for name, rows, kernel in cases(args, memory)
        ],
    }  # fmt: skip


def multiply_rate(scheme: WeightScheme, seconds: float) -> float:
    kernel = matmul(scheme, CACHED_ROWS, (CACHED, CACHED), 0)
    return kernel.operations / fastest(kernel.run, seconds)


def cases(args: argparse.Namespace, memory: int) -> Iterator[tuple[str, int, KernelCalls]]:
    """Each kernel at each number of rows, made when it is asked for."""
    for rows in args.rows:
        for name, scheme in SCHEMES.items():
            yield name, rows, matmul(scheme, rows, (args.inputs, args.outputs), memory)
        yield ATTENTION, rows, attention(rows, args.context, memory)


def bound(one: dict[str, Any], alone: float, rates: dict[str, Any]) -> dict[str, Any]:
    """Where a kernel's time goes: `alone` is that of a single thread."""
    kind = "bfloat16" if one["kernel"] == ATTENTION else one["kernel"]
    taken = one["seconds"]
    memory = one["bytes"] / rates["bytes_per_s"]
    arithmetic = one["operations"] / rates["operations_per_s"][kind]
    waiting = max(0.0, taken - max(memory, arithmetic, alone / rates["threads"]))
    shares = {
        "memory": memory / taken,
        "arithmetic": arithmetic / taken,
        "threads": waiting / taken,
    }
    largest = max(shares, key=lambda name: shares[name])
    # Less than half: conversions, softmax and the call itself take the most.
    return {**one, "alone_s": alone, "shares": shares,
            "bound": largest if shares[largest] >= 0.5 else "other instructions"}  # fmt: skip


def measure(args: argparse.Namespace) -> dict[str, Any]:
    if not hasattr(os, "sched_setaffinity"):
        raise ConfigError("cpu_kernels: expected Linux, where a process can be given one core.")
    if args.threads:
        return measured(args, args.threads)
    alone, together = (child(args, threads) for threads in (1, cores() or 1))
    pairs = zip(together.pop("kernels"), alone.pop("kernels"), strict=True)
    kernels = [bound(one, other["seconds"], together) for one, other in pairs]
    return {"sizes": sizes_of(args), "alone": alone, "together": together, "kernels": kernels}


def sizes_of(args: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(args, name) for name in ("inputs", "outputs", "context", "mb")}


def child(args: argparse.Namespace, threads: int) -> dict[str, Any]:
    """What a process with so many threads measures: XLA counts cores as it starts."""
    words = [f"--{name}={value}" for name, value in sizes_of(args).items()]
    words += [f"--threads={threads}", f"--seconds={args.seconds}", "--rows", *map(str, args.rows)]
    command = [sys.executable, "-m", "jengine.bench.cpu_kernels", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: found[name] for name in
            ("threads", "instructions", "bytes_per_s", "operations_per_s", "kernels")}  # fmt: skip


def printed(result: dict[str, Any]) -> str:
    """Rates, and a line for each kernel and number of rows."""
    if "together" not in result:
        return ""
    lines = [
        f"{one['threads']} threads ({one['instructions']}): {one['bytes_per_s'] / 1e9:.1f} GB/s; "
        + ", ".join(
            f"{name} {rate / 1e9:.0f} GOP/s" for name, rate in one["operations_per_s"].items()
        )
        for one in (result["alone"], result["together"])
    ]
    for one in result["kernels"]:
        shares = ", ".join(f"{name} {share:.2f}" for name, share in one["shares"].items())
        lines.append(
            f"{one['kernel']}, {one['rows']} rows: {1e3 * one['seconds']:.3f} ms, alone "
            f"{1e3 * one['alone_s']:.3f}; bound by {one['bound']} ({shares})"
        )
    return "\n".join(lines)


FLAGS = {
    "--rows": {"type": int, "nargs": "+", "default": [1, 8, 64, 512]},
    "--inputs": 2048,
    "--outputs": 8192,
    "--context": 512,
    "--mb": {"type": int, "default": 256, "help": "memory that no cache holds [256]"},
    "--seconds": {"type": float, "default": 0.3, "help": "of each timing [0.3]"},
    "--threads": {"type": int, "default": 0, "help": "measure with so many only [one, then all]"},
}
main = Benchmark("cpu_kernels", __doc__, FLAGS, measure, printed).main


if __name__ == "__main__":
    raise SystemExit(main())
