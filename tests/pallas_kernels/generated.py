"""Random cases of paged attention with their results, worked out in float64.

Rows differ in length, share blocks, lie in pages in random order, and everything that a row may not
see, within its blocks and outside, is NaN. Some rows are padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from jengine.bench.attention_shapes import HEAD_DIMS

BLOCK_SIZES = (16, 24, 32, 64, 128)
# By how much weights of the softmax may be rounded before they meet the values.
ROUNDING = {"float32": 1e-5, "float16": 2.0**-10, "bfloat16": 2.0**-8}


@dataclass
class Generated:
    """Arguments of an operation, and what it should return."""

    arguments: dict[str, Any]  # arrays by name
    options: dict[str, Any]
    dtype: str
    expected: np.ndarray  # float64
    lse: np.ndarray
    tolerance: np.ndarray


@dataclass
class Shape:
    """What a case's kernels are compiled for."""

    kv_heads: int
    group: int
    head_dim: int
    block_size: int
    dtype: str
    window: int | None
    scale: float | None
    soft_cap: float | None
    sinks: bool


def random_shape(rng: np.random.Generator) -> Shape:
    maybe = lambda value: value if rng.random() < 0.4 else None  # noqa: E731
    return Shape(
        kv_heads=int(rng.integers(1, 4)),
        group=int(rng.integers(1, 17)),
        head_dim=int(rng.choice(HEAD_DIMS)),
        block_size=int(rng.choice(BLOCK_SIZES)),
        dtype=str(rng.choice(["float32", "float32", "bfloat16", "float16"])),
        window=maybe(int(rng.integers(1, 200))),
        scale=maybe(float(rng.uniform(0.05, 0.3))),
        soft_cap=maybe(float(rng.uniform(2, 30))),
        sinks=bool(rng.random() < 0.3),
    )


def numpy_dtype(name: str) -> Any:
    return ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)


class Memory:
    """A paged cache being filled: vectors of each row, and where they lie."""

    def __init__(self, rng: np.random.Generator, shape: Shape, lengths: list[int]) -> None:
        self.shape, self.layer = shape, int(rng.integers(2))
        pages = [-(-length // shape.block_size) for length in lengths]
        blocks = sum(pages) + 3
        size = (2, 2, blocks, shape.block_size, shape.kv_heads * shape.head_dim)
        self.cache = np.full(size, np.nan, numpy_dtype(shape.dtype))
        free = iter(rng.permutation(np.arange(1, blocks)).tolist())
        self.rows: list[tuple[np.ndarray, np.ndarray]] = []
        self.blocks: list[list[int]] = []
        for row, length in enumerate(lengths):
            drawn = rng.normal(size=(2, length, shape.kv_heads, shape.head_dim))
            vectors = drawn.astype(numpy_dtype(shape.dtype))
            own = [next(free) for _ in range(pages[row])]
            if row and rng.random() < 0.5:  # begins as the first row does, in the same blocks
                shared = min(lengths[0], length) // shape.block_size
                own[:shared] = self.blocks[0][:shared]
                same = shared * shape.block_size
                vectors[:, :same] = np.stack(self.rows[0])[:, :same]
            for plane in (0, 1):
                for position in range(length):
                    block = own[position // shape.block_size]
                    flat = vectors[plane, position].reshape(-1)
                    self.cache[self.layer, plane, block, position % shape.block_size] = flat
            self.rows.append((vectors[0], vectors[1]))
            self.blocks.append(own)

    def table(self, row: int, first_position: int, pages: int) -> tuple[list[int], int]:
        """A row's table from the page of a position on, and its start; the rest is poison."""
        page = first_position // self.shape.block_size
        own = self.blocks[row][page : page + pages]
        return own + [0] * (pages - len(own)), page * self.shape.block_size


def attend(
    shape: Shape, query: np.ndarray, row: tuple[np.ndarray, np.ndarray], position: int,
    sinks: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """One query [heads, dim]: result, log-sum-exp, and what rounding of weights may change."""
    first = 0 if shape.window is None else max(0, position + 1 - shape.window)
    keys, values = (x[first : position + 1].astype(np.float64) for x in row)
    grouped = query.astype(np.float64).reshape(shape.kv_heads, shape.group, shape.head_dim)
    scale = shape.head_dim**-0.5 if shape.scale is None else shape.scale
    scores = np.einsum("kgd,skd->kgs", grouped, keys) * scale
    if shape.soft_cap is not None:
        scores = shape.soft_cap * np.tanh(scores / shape.soft_cap)
    extra = np.full((shape.kv_heads, shape.group, 1), -np.inf)
    if sinks is not None:
        extra = sinks.reshape(shape.kv_heads, shape.group, 1).astype(np.float64)
    highest = np.maximum(scores.max(-1, keepdims=True), extra)
    weights = np.exp(scores - highest)
    total = weights.sum(-1, keepdims=True) + np.exp(extra - highest)
    mixed = np.einsum("kgs,skd->kgd", weights / total, values)
    spread = np.einsum("kgs,skd->kgd", weights / total, np.abs(values))
    lse = (highest + np.log(total)).reshape(-1)
    return mixed.reshape(query.shape), lse, spread.reshape(query.shape)


def common(memory: Memory, rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    shape = memory.shape
    heads = shape.kv_heads * shape.group
    sinks = rng.normal(size=heads).astype(np.float32) * 2 if shape.sinks else None
    arguments = {"cache": memory.cache, "layer": memory.layer, "sinks": sinks}
    options = {
        "head_dim": shape.head_dim, "window": shape.window, "scale": shape.scale,
        "soft_cap": shape.soft_cap,
    }  # fmt: skip
    return arguments, options


def queries(rng: np.random.Generator, shape: Shape, count: int) -> np.ndarray:
    """Queries as the kernels see them: of the cache's type, held in float32."""
    drawn = rng.normal(size=(count, shape.kv_heads * shape.group, shape.head_dim)) * 2
    return drawn.astype(numpy_dtype(shape.dtype)).astype(np.float32)


def decode_case(seed: int, longest: int = 300) -> Generated:
    """Rows of one query each; the last may be padding."""
    rng = np.random.default_rng(seed)
    shape = random_shape(rng)
    if rng.random() < 0.3:
        longest //= 3  # short enough for a single part
    edges = [1, 2, shape.block_size, shape.block_size + 1, longest]
    count = int(rng.integers(1, 4))
    lengths = [int(rng.choice([*edges, *rng.integers(1, longest + 1, 5)])) for _ in range(count)]
    memory = Memory(rng, shape, lengths)
    arguments, options = common(memory, rng)
    padding = int(rng.integers(0, 3))
    # Wider tables than needed, so that the context is divided into more parts than it fills.
    pages = -(-longest * int(rng.integers(1, 5)) // shape.block_size)
    in_view = [max(0, n - (shape.window or n)) for n in lengths]
    tables = [memory.table(row, first, pages) for row, first in enumerate(in_view)]
    tables += [([0] * pages, 0)] * padding
    q = queries(rng, shape, count + padding)
    found = [
        attend(shape, q[row], memory.rows[row], length - 1, arguments["sinks"])
        for row, length in enumerate(lengths)
    ]
    nothing = np.zeros(q.shape[1:]), np.full(q.shape[1], -np.inf), np.zeros(q.shape[1:])
    expected, lse, spread = map(np.stack, zip(*found, *[nothing] * padding, strict=True))
    arguments |= {
        "q": q,
        "tables": np.asarray([table for table, _ in tables], np.int32),
        "starts": np.asarray([start for _, start in tables], np.int32),
        "lengths": np.asarray([*lengths, *[0] * padding], np.int32),
    }
    return Generated(arguments, options, shape.dtype, expected, lse, spread * ROUNDING[shape.dtype])


def prefill_case(seed: int, longest: int = 200) -> Generated:
    """Chunks of rows in tiles: whole prompts, later chunks, prefix hits; padding at the end."""
    rng = np.random.default_rng(seed)
    shape = random_shape(rng)
    tile = int(rng.choice([4, 8, 16, 32]))
    lengths = [int(rng.integers(1, longest + 1)) for _ in range(int(rng.integers(1, 3)))]
    memory = Memory(rng, shape, lengths)
    arguments, options = common(memory, rng)
    pages = -(-longest // shape.block_size) + 1
    tables, starts, owners, positions = [], [], [], []
    for row, length in enumerate(lengths):
        begin = int(rng.integers(0, length)) if rng.random() < 0.6 else 0
        begin = max(begin, length - 36)
        for first in range(begin, length, tile):
            in_view = 0 if shape.window is None else max(0, first - shape.window + 1)
            table, start = memory.table(row, in_view, pages)
            tables.append(table)
            starts.append(start)
            own = np.arange(first, min(first + tile, length))
            positions.append(np.concatenate([own, np.full(tile - len(own), -1)]))
            owners += [row] * tile
    padding = int(rng.integers(0, 2))
    tables += [[0] * pages] * padding
    starts += [0] * padding
    positions += [np.full(tile, -1)] * padding
    owners += [0] * (tile * padding)
    flat = np.concatenate(positions).astype(np.int32)
    q = queries(rng, shape, len(flat))
    expected, spread = np.zeros(q.shape), np.zeros(q.shape)
    lse = np.full(q.shape[:2], -np.inf)
    for index, position in enumerate(flat):
        if position >= 0:
            row = memory.rows[owners[index]]
            found = attend(shape, q[index], row, int(position), arguments["sinks"])
            expected[index], lse[index], spread[index] = found
    arguments |= {
        "q": q, "tables": np.asarray(tables, np.int32), "starts": np.asarray(starts, np.int32),
        "positions": flat,
    }  # fmt: skip
    return Generated(arguments, options, shape.dtype, expected, lse, spread * ROUNDING[shape.dtype])
