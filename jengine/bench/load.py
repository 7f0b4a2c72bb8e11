"""Model load time from a folder to the default device, and peak host memory.

Each measurement loads in a new process: once with whatever the system's page cache holds,
then `repeats` times in a row, with the files in the page cache and memory that the process has used
before. Copies in memory and reads of the same files are timed too: they bound the speed.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jengine.bench.machine import cores, peak_bytes
from jengine.bench.peak_memory import in_gb, resident_bytes
from jengine.bench.surroundings import surroundings
from jengine.errors import JengineError
from jengine.models.parameter import named_parameters, parameter_bytes
from jengine.weights.dummy import dummy_model
from jengine.weights.folder import open_checkpoint, read_model_config
from jengine.weights.resolve import resolve_model
from jengine.weights.safetensors_io import load_model, save_pretrained

CHILD = """
import json, sys
from jengine.bench.load import loads
print(json.dumps(loads(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
"""
# Most bytes that the timed copies and reads move, and how often.
PROBE_BYTES = 2**30
PROBES = 3


class LoadFailed(JengineError, RuntimeError):
    """The loading process failed."""


def measure(model: str, dtype: str, repeats: int) -> dict[str, Any]:
    """Load `model` in a new process; a folder with only config.json first gets random weights."""
    with folder_of_weights(resolve_model(model)) as folder:
        done = subprocess.run(  # noqa: S603 - this Python, and a program of ours
            [sys.executable, "-c", CHILD, str(folder), dtype, str(repeats)],
            capture_output=True, text=True, check=False, env=dict(os.environ),
        )  # fmt: skip
        if done.returncode:
            last = " / ".join(done.stderr.strip().splitlines()[-3:])
            raise LoadFailed(f"{model} was not loaded (status {done.returncode}): {last}")
        return {"bench": "load", **surroundings(), **json.loads(done.stdout.splitlines()[-1])}


@contextmanager
def folder_of_weights(folder: Path) -> Iterator[Path]:
    """The folder itself, or a temporary one with its config and random weights."""
    if any(folder.glob("*.safetensors*")):
        yield folder
        return
    with tempfile.TemporaryDirectory() as made:
        save_pretrained(dummy_model(read_model_config(folder)), made)
        shutil.copy(folder / "config.json", made)
        yield Path(made)


def loads(folder: str, dtype: str, repeats: int) -> dict[str, Any]:
    """Load once for peak memory, then `repeats` times for speed. Runs in a new process."""
    on_host = jax.devices()[0].platform == "cpu"
    before = resident_bytes()
    first, weights, kept_dtype = timed_load(folder, dtype)
    over = peak_bytes() - before - (weights if on_host else 0)
    seconds = [timed_load(folder, dtype)[0] for _ in range(repeats)]
    files = sorted({tensor.file for tensor in open_checkpoint(Path(folder)).values()})
    size = sum(file.stat().st_size for file in files)
    return {
        "dtype": kept_dtype,
        "weights_gb": in_gb(weights),
        "stored_gb": in_gb(size),
        "first_s": round(first, 3),
        "seconds": [round(one, 3) for one in seconds],
        "gb_s": round(size / 1e9 / min(seconds), 2),
        "host_memory_over_weights_gb": in_gb(over),
        "copy_gb_s": {str(threads): copy_speed(threads) for threads in sorted({1, cores() or 1})},
        "read_gb_s": read_speed(files),
    }


def timed_load(folder: str, dtype: str) -> tuple[float, int, str]:
    """Load all weights to the device; returns seconds, bytes and dtype."""
    gc.collect()
    began = time.perf_counter()
    model = load_model(folder, dtype=dtype)
    jax.block_until_ready([parameter.get_value() for _, parameter in named_parameters(model)])
    return time.perf_counter() - began, parameter_bytes(model), model.config.dtype


def copy_speed(threads: int) -> float:
    """Memory copy bandwidth in GB/s with this many threads."""
    source = np.ones(PROBE_BYTES // 4, np.uint8)
    target = np.ones_like(source)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(PROBES):
            began = time.perf_counter()
            list(pool.map(lambda pair: np.copyto(*pair), parts))
            best = min(best, time.perf_counter() - began)
    return round(source.nbytes / 1e9 / best, 2)


def read_speed(files: list[Path]) -> float:
    """GB/s of one thread reading the files from page cache into already-faulted memory."""
    room = memoryview(bytearray(PROBE_BYTES // 4))
    best = 0.0
    for _ in range(PROBES):
        began, count = time.perf_counter(), 0
        for file in files:
            with file.open("rb", buffering=0) as stream:
                while count < PROBE_BYTES and (read := stream.readinto(room)):
                    count += read
        best = max(best, count / 1e9 / (time.perf_counter() - began))
    return round(best, 2)


def printed(result: dict[str, Any]) -> str:
    """Speed, its bounds, and memory."""
    copies = ", ".join(f"{speed} with {n}" for n, speed in result["copy_gb_s"].items())
    return "\n".join(
        (
            f"Load: {result['gb_s']:.2f} GB/s, {min(result['seconds']):.2f} s for"
            f" {result['stored_gb']:.2f} GB; the first time {result['first_s']:.2f} s",
            f"Limits: {result['read_gb_s']} GB/s to read the files, copies in GB/s by threads:"
            f" {copies}",
            f"Host memory over the weights: {result['host_memory_over_weights_gb']:.2f} GB",
        )
    )
