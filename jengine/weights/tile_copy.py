"""Blocked multi-threaded copies of tensors into parameters, transposing where needed.

In: numpy views of one shape in different memory orders. Out: the destination filled. Must not know
checkpoints or devices.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait

import numpy as np
from numpy.lib.stride_tricks import as_strided

# Rows transposed at a time, and bytes of the tile that gathers them: it stays in the CPU cache.
TILE_ROWS = 256
TILE_BYTES = 2**17
# Padding of a tile's rows in bytes. Strides that are powers of two map a column to few cache sets,
# so that it evicts itself; the padding avoids this within the tile.
TILE_PADDING = 64
# Target bytes per task; a smaller parameter is copied by the calling thread.
TASK_BYTES = 2**22
MOST_THREADS = 16
THREAD_NAME = "load-weights"
# Integer views for custom dtypes such as bfloat16, which NumPy copies element by element while
# holding the GIL.
BITS = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}

Task = Callable[[], None]
Convert = Callable[[np.ndarray], np.ndarray]


@contextlib.contextmanager
def copy_threads() -> Iterator[Executor | None]:
    """Thread pool with one thread per usable core; None on a single core."""
    usable = getattr(os, "sched_getaffinity", None)
    cores = len(usable(0)) if usable else os.cpu_count() or 1
    if cores == 1:
        yield None
        return
    pool = ThreadPoolExecutor(min(cores, MOST_THREADS), THREAD_NAME)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def run_tasks(tasks: Iterable[Task], threads: Executor | None) -> None:
    """Run all tasks; of several errors the first in order is raised."""
    if threads is None:
        for task in tasks:
            task()
        return
    futures: list[Future[None]] = []
    try:
        for task in tasks:
            futures.append(threads.submit(task))
        for future in futures:
            future.result()
    finally:
        for future in futures:
            future.cancel()
        wait(futures)  # running tasks still write to the caller's memory


def task_regions(region: Sequence[slice], itemsize: int, unsplit: int = 0) -> Iterator[list[slice]]:
    """Split a region into parts of about TASK_BYTES, keeping the first `unsplit` axes whole."""
    sizes = [one.stop - one.start for one in region]
    axis = next((axis for axis, size in enumerate(sizes) if size > 1 and axis >= unsplit), 0)
    count = -(-math.prod(sizes) * itemsize // TASK_BYTES)
    step = -(-sizes[axis] // count)
    if step > TILE_ROWS:
        step = -(-step // TILE_ROWS) * TILE_ROWS
    for start in range(region[axis].start, region[axis].stop, step):
        part = list(region)
        part[axis] = slice(start, min(start + step, region[axis].stop))
        yield part


def copy(into: np.ndarray, values: np.ndarray, convert: Convert) -> None:
    """Assign `values`, passed through `convert`, to `into` of the same shape."""
    into, values = _merged(into, values)
    contiguous = int(np.argmin(values.strides)) if values.ndim else 0
    if contiguous < values.ndim - 1:
        into, values = (np.moveaxis(one, contiguous, 0) for one in (into, values))
        _copy_transposed(into, values, convert)
    else:
        _assign(into, convert(values))


def _merged(into: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Collapse both arrays' axes as far as possible, dropping those of size 1."""
    sizes: list[int] = []
    strides: list[tuple[int, int]] = []
    for size, *steps in zip(into.shape, into.strides, values.strides, strict=True):
        if size == 1:
            continue
        if sizes and strides[-1] == (size * steps[0], size * steps[1]):
            sizes[-1] *= size
            strides[-1] = (steps[0], steps[1])
        else:
            sizes.append(size)
            strides.append((steps[0], steps[1]))
    # Not reshape, which silently copies where no view is possible.
    first, second = ([pair[which] for pair in strides] for which in (0, 1))
    return as_strided(into, sizes, first), as_strided(values, sizes, second)


def _copy_transposed(into: np.ndarray, values: np.ndarray, convert: Convert) -> None:
    """Copy through a cache-sized tile; `values` is contiguous along its first axis."""
    columns = TILE_BYTES // (TILE_ROWS * into.itemsize)
    height = min(TILE_ROWS, into.shape[-1])
    tile = np.empty((height, columns + TILE_PADDING // into.itemsize), into.dtype)
    for middle in np.ndindex(values.shape[1:-1]):
        target, rows = into[:, *middle], values[:, *middle].T
        for row in range(0, len(rows), TILE_ROWS):
            for column in range(0, len(target), columns):
                there = (slice(row, row + TILE_ROWS), slice(column, column + columns))
                given = rows[there]
                part = tile[: given.shape[0], : given.shape[1]]
                _assign(part, convert(given))
                _assign(target[there[::-1]], part.T)


def _assign(into: np.ndarray, values: np.ndarray) -> None:
    if into.dtype == values.dtype:
        bits = BITS[into.itemsize]
        into, values = into.view(bits), values.view(bits)
    into[...] = values
