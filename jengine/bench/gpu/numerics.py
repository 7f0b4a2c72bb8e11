"""Stage: compares every kernel on this device with float64 on the host, dtype by dtype.

Unallocated blocks hold NaN. A line passes if the largest error of any token, relative to its
largest value, is within the rounding of the dtype.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from jengine.bench.attention_shapes import AttentionShape, attention_shapes
from jengine.bench.gpu.case_inputs import (
    attend,
    implementation_here,
    joined_tiles,
    runs_of,
    tile_of,
)
from jengine.bench.gpu.cases import AttentionCase, SamplingCase, sampling_cases
from jengine.bench.gpu.part import StageResult, run_stage
from jengine.runner.step.attention_backend import CODES
from pallas_kernels.cache_write import rotate_and_write, write_cache
from pallas_kernels.layout import KEYS, VALUES, cache_shape, decoded, encoded, read_heads
from pallas_kernels.token_sampling import sample_tokens

# Weights of softmax are rounded to the cache's type before they meet the values.
TOLERANCES = {"float32": 1e-4, "float16": 4e-3, "bfloat16": 2e-2}
LENGTHS = (1, 17, 300, 1000)
# Of rows that share their first blocks, in which there are more of them than one tile has room for.
SHARING, SHARED = (1000, 280, 700, 1000, 513, 300), 256


# Of options, for short rows; and fewer heads than engines have.
SHORT: dict[str, Any] = {"window": 100, "soft_cap": 20.0, "sinks": True}
# Checked, but not compiled without a device.
MORE = (
    AttentionShape(dtype="float32"), AttentionShape(dtype="float32", **SHORT),
    AttentionShape(block_size=32),
)  # fmt: skip


@dataclass(frozen=True)
class Check(AttentionCase):
    """One attention comparison."""

    def __str__(self) -> str:
        kind = "decode" if self.new_tokens == 1 else f"prefill of {self.new_tokens}"
        options = {"window": self.window, "soft_cap": self.soft_cap, "sinks": self.sinks}
        given = ", ".join(f"{name} {value}" for name, value in options.items() if value) or "plain"
        return (
            f"{kind} {self.dtype} dim {self.head_dim} group {self.group} "
            f"block {self.block_size}, {given}"
            + ", shared blocks" * (self.shared > 0)
            + f", cache of {self.codes}" * bool(self.codes)
        )


def checks(*, dry_run: bool) -> list[Check]:
    """Comparisons, most informative first, since the stage may run out of time."""
    if dry_run:
        base = Check(2, 40, kv_heads=2, group=2, head_dim=16, dtype="float32")
        return [
            *(
                replace(one, new_tokens=new)
                for new in (1, 20)
                for one in (base, replace(base, window=10, soft_cap=20.0, sinks=True))
            ),
            replace(base, shared=SHARED, soft_cap=20.0, sinks=True),
            replace(base, dtype="bfloat16", codes="fp8"),
            replace(base, dtype="bfloat16", codes="int8", new_tokens=20),
        ]
    base = Check(len(LENGTHS), max(LENGTHS), kv_heads=2)
    shared = replace(base, shared=SHARED)
    return [shared, replace(shared, dtype="float32", soft_cap=20.0, sinks=True)] + [
        Check(base.rows, base.context, new, **small(shape))
        for shape in (*MORE, *attention_shapes())
        # Long chunks over codes are read from copies, short ones beside them are not.
        for new in ((1, 100, 300) if shape.codes else (1, 100))
    ]  # fmt: skip


def small(shape: AttentionShape) -> dict[str, Any]:
    """The shape for short rows and few heads."""
    return {**vars(shape), "kv_heads": 2, **(SHORT if shape.sinks else {})}


def measure(part: StageResult, args: argparse.Namespace) -> None:
    """One line per comparison, with its outcome in `right`."""
    implementation = implementation_here()
    if implementation == "xla":
        part.note("triton is not installed: these are the plain XLA implementations")
    for dtype in part.in_time(("float32",) if args.dry_run else tuple(TOLERANCES)):
        with part.attempt("rotate and write", dtype):
            add(part, "rotate and write", dtype, write_error(dtype, implementation), dtype)
    for codes in part.in_time(CODES):
        with part.attempt("written codes", codes):
            part.add(what="written codes", case=codes, **code_differences(codes, implementation))
    rows, vocab = (3, 70) if args.dry_run else (64, 151_936)
    for case in part.in_time(sampling_cases((rows,), vocab)):
        with part.attempt("sampling", case):
            part.add(what="sampling", case=str(case), **sampling_differences(case, implementation))
    for check in part.in_time(checks(dry_run=args.dry_run)):
        lengths = (7, 40) if args.dry_run else LENGTHS
        if check.shared:
            lengths = SHARING[:2] if args.dry_run else SHARING
        with part.attempt("attention", check):
            error = attention_error(check, lengths, implementation)
            add(part, "attention", str(check), error, check.dtype)


def add(part: StageResult, what: str, case: str, error: float, dtype: str) -> None:
    """Add a line with a relative error."""
    tolerance = TOLERANCES[dtype]
    part.add(what=what, case=case, error=error, tolerance=tolerance, right=bool(error < tolerance))


class Paged(NamedTuple):
    """Rows of different lengths over one cache; blocks that no table uses hold NaN."""

    cache: Array
    tables: np.ndarray
    keys: list[np.ndarray]  # per row, float64 [length, kv_heads, dim]
    values: list[np.ndarray]


def paged(case: AttentionCase, lengths: tuple[int, ...], implementation: str) -> Paged:
    """Random keys and values in the case's dtype, or in codes as the implementation writes them."""
    rng = np.random.default_rng(case.head_dim + case.group)
    pages = -(-max(lengths) // case.block_size)
    shape = cache_shape(2, len(lengths) * pages + 1, case.block_size, case.kv_heads, case.head_dim)
    cache = np.full(shape, np.nan, np.float32)
    tables = rng.permutation(np.arange(1, shape[2], dtype=np.int32)).reshape(len(lengths), pages)
    rows: list[list[np.ndarray]] = [[], []]
    for row, length in enumerate(lengths):
        positions = np.arange(length)
        blocks, slots = tables[row, positions // case.block_size], positions % case.block_size
        for plane, kept in ((KEYS, rows[0]), (VALUES, rows[1])):
            exact = rng.normal(size=(length, case.kv_heads, case.head_dim)).astype(np.float32)
            exact = exact if case.codes else rounded(exact, case.dtype)
            cache[1, plane, blocks, slots] = exact.reshape(length, -1)
            kept.append(exact.astype(np.float64))
    for row in range(1, len(lengths)) if case.shared else ():
        tables[row, : case.shared // case.block_size] = tables[0, : case.shared // case.block_size]
        for kept in rows:
            kept[row][: case.shared] = kept[0][: case.shared]
    if not case.codes:
        return Paged(jnp.asarray(cache).astype(case.dtype), tables, *rows)
    held = coded(case, tables, rows, implementation)
    return Paged(held, tables, *read_back(held, tables, lengths, case.head_dim))


def read_back(
    cache: Array, tables: np.ndarray, lengths: Sequence[int], head_dim: int
) -> Iterator[list[np.ndarray]]:
    """Keys and values per row as the cache holds them. Encoding twice would not find them: a second
    scale is of the largest code, which need not be the largest there is."""
    seen = np.arange(tables.shape[1] * cache.shape[3])[None] < np.asarray(lengths)[:, None]
    for heads in read_heads(cache, 1, jnp.asarray(tables), head_dim, jnp.asarray(seen)):
        by_row = np.asarray(heads, np.float64).swapaxes(1, 2)
        yield [row[:length] for row, length in zip(by_row, lengths, strict=True)]


def coded(
    case: AttentionCase,
    tables: np.ndarray,
    rows: Sequence[Sequence[np.ndarray]],
    implementation: str,
) -> Array:
    """A cache of these rows' keys and values in codes; the scales of all other slots are NaN."""
    shape = cache_shape(
        2, tables.size + 1, case.block_size, case.kv_heads, case.head_dim, CODES[case.codes]
    )
    places = [np.arange(len(one)) for one in rows[0]]
    slots = [
        table[at // case.block_size] * case.block_size + at % case.block_size
        for table, at in zip(tables, places, strict=True)
    ]
    first = [0] + [case.shared] * (len(rows[0]) - 1)  # shared slots are written once
    k, v = (
        jnp.asarray(np.concatenate([x[a:] for x, a in zip(kept, first, strict=True)]), jnp.float32)
        for kept in rows
    )
    own = np.concatenate([x[a:] for x, a in zip(slots, first, strict=True)])
    empty = jnp.full(shape, -1, CODES[case.codes])
    return write_cache(empty, 1, k, v, jnp.asarray(own, jnp.int32), implementation)


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """Round float32 values through a dtype."""
    return np.asarray(jnp.asarray(x).astype(dtype).astype(jnp.float32))


def attention_error(case: AttentionCase, lengths: tuple[int, ...], implementation: str) -> float:
    """Largest relative error of decode or prefill attention."""
    data = paged(case, lengths, implementation)
    rng = np.random.default_rng(1)
    heads = case.kv_heads * case.group
    sinks = rng.normal(size=heads).astype(np.float32) if case.sinks else None
    tile = tile_of(case)
    owners, positions = tiles_of(lengths, case.new_tokens, tile)
    q = rng.normal(size=(positions.size, heads, case.head_dim)).astype(np.float32)
    run = attend(
        case, implementation, window=case.window, soft_cap=case.soft_cap,
        sinks=None if sinks is None else jnp.asarray(sinks),
    )  # fmt: skip
    last = positions.reshape(-1)
    found = run(
        jnp.asarray(q), data.cache, 1,
        jnp.asarray(data.tables[owners]), jnp.zeros(len(owners), jnp.int32),
        jnp.asarray(last + 1 if tile == 1 else last),
        runs_of(np.bincount(owners).tolist(), joined_tiles(case)),
    )  # fmt: skip
    expected = np.zeros(q.shape)
    exact = rounded(q, case.dtype).astype(np.float64)
    for token in np.flatnonzero(last >= 0):
        row = owners[token // tile]
        expected[token] = attended(
            exact[token], data.keys[row], data.values[row], int(last[token]), case, sinks
        )
    return relative_error(np.asarray(found), expected)


def tiles_of(lengths: tuple[int, ...], new_tokens: int, tile: int) -> tuple[np.ndarray, np.ndarray]:
    """Row of each tile, and query positions [tiles, tile], -1 for padding."""
    owners, positions = [], []
    for row, length in enumerate(lengths):
        new = np.arange(max(length - new_tokens, 0), length)
        tiles = np.full((-(-len(new) // tile), tile), -1, np.int32)
        tiles.reshape(-1)[: len(new)] = new
        owners += [row] * len(tiles)
        positions.append(tiles)
    return np.asarray(owners, np.int32), np.concatenate(positions)


def attended(
    q: np.ndarray, keys: np.ndarray, values: np.ndarray, position: int, case: AttentionShape,
    sinks: np.ndarray | None,
) -> np.ndarray:  # fmt: skip
    """Reference attention of one token's queries [heads, dim], in float64."""
    first = 0 if case.window is None else max(position + 1 - case.window, 0)
    kv_heads, dim = keys.shape[1:]
    k, v = (x[first : position + 1].transpose(1, 0, 2) for x in (keys, values))  # [KV, S, D]
    scores = q.reshape(kv_heads, -1, dim) @ k.transpose(0, 2, 1) * dim**-0.5  # [KV, G, S]
    if case.soft_cap is not None:
        scores = case.soft_cap * np.tanh(scores / case.soft_cap)
    highest = scores.max(axis=2, keepdims=True)
    weights = np.exp(scores - highest)
    total = weights.sum(axis=2, keepdims=True)
    if sinks is not None:
        total += np.exp(sinks.reshape(kv_heads, -1, 1) - highest)
    return (weights / total @ v).reshape(q.shape)


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest error of any token or layer, relative to its largest value; infinite if any value
    is not finite. Where zeros are expected, only zeros pass."""
    inner = tuple(range(1, expected.ndim))
    difference = np.abs(found.astype(np.float64) - expected).max(axis=inner)
    largest = np.abs(expected).max(axis=inner)
    relative = np.where(difference == 0, 0, difference / np.maximum(largest, 1e-300))
    return float(relative.max()) if np.isfinite(relative).all() else float("inf")


def write_error(dtype: str, implementation: str) -> float:
    """Compare rotated queries and the cache; unwritten slots must be unchanged."""
    rng = np.random.default_rng(3)
    tokens, kv_heads, group, dim = 37, 2, 3, 64
    shape = cache_shape(2, 8, 16, kv_heads, dim)
    before = rounded(rng.normal(size=shape).astype(np.float32), dtype)
    qkv = rng.normal(size=(tokens, kv_heads, group + 2, dim)).astype(np.float32)
    angle = rng.normal(size=(tokens, dim // 2)).astype(np.float32)
    slots = rng.permutation(8 * 16)[:tokens].astype(np.int32)
    slots[5] = -1
    turns = jnp.cos(angle), jnp.sin(angle)
    q, after = rotate_and_write(
        jnp.asarray(before).astype(dtype), 1, jnp.asarray(qkv), jnp.asarray(slots),
        rotation=turns, implementation=implementation,
    )  # fmt: skip
    turned = rotated(qkv[:, :, :-1].astype(np.float64), angle.astype(np.float64))
    expected = before.astype(np.float64)
    flat = expected.reshape(2, 2, 8 * 16, -1)
    for token in np.flatnonzero(slots >= 0):
        flat[1, KEYS, slots[token]] = turned[token, :, -1].reshape(-1)
        flat[1, VALUES, slots[token]] = qkv[token, :, -1].reshape(-1)
    alone = write_cache(
        jnp.asarray(before).astype(dtype), 1, jnp.asarray(turned[:, :, -1], jnp.float32),
        jnp.asarray(qkv[:, :, -1]), jnp.asarray(slots), implementation,
    )  # fmt: skip
    queries = turned[:, :, :-1]
    return max(
        relative_error(np.asarray(q.astype(jnp.float32)).reshape(queries.shape), queries),
        *(relative_error(np.asarray(x.astype(jnp.float32)), expected) for x in (after, alone)),
    )


def code_differences(codes: str, implementation: str) -> dict[str, Any]:
    """Number of keys and values that a quantized cache holds otherwise than `encoded` gives them; a
    quotient in the middle between two codes may become either."""
    rng, dim = np.random.default_rng(4), 64
    exact = [rng.normal(size=(48, 2, dim)).astype(np.float32) for _ in (KEYS, VALUES)]
    tables = np.asarray([[3, 1, 4]], np.int32)
    slots = (tables.T * 16 + np.arange(16, dtype=np.int32)).reshape(-1)
    empty = jnp.full(cache_shape(2, 5, 16, 2, dim, CODES[codes]), -1, CODES[codes])
    cache = write_cache(
        empty, 1, *(jnp.asarray(x) for x in exact), jnp.asarray(slots), implementation
    )
    found = [row for (row,) in read_back(cache, tables, [slots.size], dim)]
    expected = [decoded(*encoded(jnp.asarray(x), CODES[codes])) for x in exact]
    different = sum(int((a != np.asarray(b)).sum()) for a, b in zip(found, expected, strict=True))
    values = sum(x.size for x in exact)
    return {"different": different, "of": values, "right": different <= values / 1000}


def rotated(x: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """Reference rotary embedding (half-split); x is [tokens, kv_heads, members, dim]."""
    first, second = np.split(x, 2, axis=-1)
    cos, sin = (function(angle)[:, None, None] for function in (np.cos, np.sin))
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def sampling_differences(case: SamplingCase, implementation: str) -> dict[str, Any]:
    """Number of rows whose token differs from the sort-based reference; rounding of a logarithm may
    flip a few.

    More than one row in fifty would be more than that.
    """
    rng = np.random.default_rng(5)
    logits = jnp.asarray(rng.normal(size=(case.rows, case.vocab)).astype(np.float32) * 3)
    keys = jnp.asarray(rng.integers(0, 2**32, (case.rows, 2), np.uint32))
    kinds = (jnp.float32, jnp.int32, jnp.float32, jnp.float32)
    settings = [jnp.full(case.rows, x, k) for x, k in zip(case.settings, kinds, strict=True)]
    run = functools.partial(sample_tokens, logits, keys, *settings)
    found, expected = (np.asarray(run(implementation=name)) for name in (implementation, "xla"))
    different = int((found != expected).sum())
    return {"different": different, "of": case.rows, "right": different <= case.rows / 50}


if __name__ == "__main__":
    run_stage(measure)
