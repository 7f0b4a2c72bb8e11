"""Paged attention in numpy, slowly and obviously, and random cases for it.

Blocks out of a row's view and slots beyond its length hold NaN, which would spoil the result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BLOCK_SIZE = 4


@dataclass
class Case:
    """Rows of different lengths, their blocks scattered over one cache array."""

    cache: np.ndarray  # [layers, 2, blocks, block_size, kv_heads * head_dim]
    keys: list[np.ndarray]  # a row: [length, kv_heads, head_dim]
    values: list[np.ndarray]
    tables: np.ndarray  # [rows, pages]
    starts: np.ndarray  # [rows]
    layer: int
    head_dim: int
    window: int | None


def random_case(
    lengths: list[int],
    *,
    kv_heads: int = 2,
    head_dim: int = 8,
    window: int | None = None,
    queries: int = 1,
    seed: int = 0,
) -> Case:
    """A cache in which each row's tokens lie in blocks of their own, and all else is poison.

    Under a window, tables begin at the block that holds the first token in view of the last
    `queries` tokens; the blocks before it are not in the cache at all.
    """
    rng = np.random.default_rng(seed)
    layers, layer = 2, 1
    pages = max(-(-max(lengths) // BLOCK_SIZE), 1)
    blocks = rng.permutation(np.arange(1, 1 + len(lengths) * pages)).reshape(len(lengths), pages)
    shape = (layers, 2, 2 + len(lengths) * pages, BLOCK_SIZE, kv_heads * head_dim)
    cache = np.full(shape, np.nan, np.float32)
    tables = np.full((len(lengths), pages), shape[2] - 1, np.int32)
    starts = np.zeros(len(lengths), np.int32)
    keys, values = [], []
    for row, length in enumerate(lengths):
        k, v = rng.normal(size=(2, length, kv_heads, head_dim)).astype(np.float32)
        keys.append(k)
        values.append(v)
        first_seen = 0 if window is None else max(0, length - queries + 1 - window)
        first_page = first_seen // BLOCK_SIZE
        starts[row] = first_page * BLOCK_SIZE
        for position in range(starts[row], length):
            page = position // BLOCK_SIZE
            block = blocks[row, page]
            tables[row, page - first_page] = block
            for plane, vectors in enumerate((k, v)):
                cache[layer, plane, block, position % BLOCK_SIZE] = vectors[position].reshape(-1)
    return Case(cache, keys, values, tables, starts, layer, head_dim, window)


def attend(
    query: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    position: int,
    window: int | None,
    *,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> np.ndarray:
    """One query [heads, head_dim] at a position, against a row's keys and values."""
    first = 0 if window is None else max(0, position + 1 - window)
    k, v = (x[first : position + 1].astype(np.float64) for x in (keys, values))
    heads, head_dim = query.shape
    group = heads // k.shape[1]
    out = np.zeros((heads, head_dim))
    for head in range(heads):
        scores = k[:, head // group] @ query[head].astype(np.float64)
        scores *= 1 / np.sqrt(head_dim) if scale is None else scale
        if soft_cap is not None:
            scores = soft_cap * np.tanh(scores / soft_cap)
        weights = np.exp(scores - scores.max())
        out[head] = weights @ v[:, head // group] / weights.sum()
    return out
