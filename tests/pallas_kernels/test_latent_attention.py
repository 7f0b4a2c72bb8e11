"""Latent attention equals numpy, and nothing but the entries asked for reaches the result."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.latent_attention import chunk_attention, latent_attention
from pallas_kernels.layout import write_entries
from tests.marks import slow
from tests.pallas_kernels.implementations import XLA_AND_TRITON

BLOCK_SIZE, LAYER, SCALE = 4, 1, 0.3


class Entries:
    """Rows of entries in scattered blocks of one cache; all else is NaN."""

    def __init__(self, lengths: list[int], width: int, first: int = 0) -> None:
        """Tables begin at the block that holds position `first`."""
        rng = np.random.default_rng(width + len(lengths))
        pages = -(-max(lengths) // BLOCK_SIZE)
        blocks = 1 + rng.permutation(len(lengths) * pages).reshape(len(lengths), pages)
        self.entries = [rng.normal(size=(n, width)).astype(np.float32) for n in lengths]
        skipped = first // BLOCK_SIZE
        self.starts = np.full(len(lengths), skipped * BLOCK_SIZE, np.int32)
        self.tables = np.zeros((len(lengths), pages - skipped), np.int32)
        cache = jnp.full((2, 2 + blocks.size, BLOCK_SIZE, width), jnp.nan)
        for row, length in enumerate(lengths):
            used = blocks[row, skipped : -(-length // BLOCK_SIZE)]
            self.tables[row, : len(used)] = used
            at = np.arange(length)
            slots = blocks[row, at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE
            slots = np.where(at < self.starts[row], -1, slots)  # these are not written
            cache = write_entries(cache, LAYER, jnp.asarray(self.entries[row]), jnp.asarray(slots))
        self.cache = cache


def softmax_of(scores: np.ndarray) -> tuple[np.ndarray, float]:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum(), scores.max() + np.log(weights.sum())


@pytest.mark.parametrize("implementation", XLA_AND_TRITON)
@pytest.mark.parametrize(
    ("heads", "rank", "rope", "each", "first"),
    [(20, 16, 4, 3, 7), *slow((4, 20, 6, 1, 0), (1, 24, 8, 1, 7), (40, 32, 8, 2, 0))],
)
def test_equals_numpy(
    heads: int, rank: int, rope: int, each: int, first: int, implementation: str
) -> None:
    """Contexts of one part and of several, rows without any, and several queries of a row."""
    lengths = [9, 600, 260, 17]
    case = Entries(lengths, rank + rope, first)
    rng = np.random.default_rng(heads)
    q = rng.normal(size=(len(lengths) * each, heads, rank + rope)).astype(np.float32)
    ends = np.array([max(n - i, 0) for n in lengths for i in range(each)], np.int32)
    ends[-each:] = 0  # padding
    begins = np.where(ends, np.minimum(first, ends), 0).astype(np.int32)
    out, lse, *_ = latent_attention(
        jnp.asarray(q), case.cache, LAYER, jnp.asarray(case.tables), jnp.asarray(case.starts),
        jnp.asarray(begins), jnp.asarray(ends), rank=rank, scale=SCALE,
        implementation=implementation,
    )  # fmt: skip
    none = begins == ends
    assert none.sum() >= each
    assert (np.asarray(out)[none] == 0).all() and (np.asarray(lse)[none] == -np.inf).all()
    for token in np.flatnonzero(~none):
        seen = case.entries[token // each][begins[token] : ends[token]]
        for head in range(heads):
            weights, expected = softmax_of(seen @ q[token, head] * SCALE)
            np.testing.assert_allclose(out[token, head], weights @ seen[:, :rank], atol=2e-5)
            np.testing.assert_allclose(lse[token, head], expected, atol=2e-5)


@pytest.mark.parametrize("window", [None, 9])
def test_chunks_attend_to_themselves(window: int | None) -> None:
    """Chunks of 1, 70 and 100 tokens, each with padding behind it in its last tile of 8."""
    lengths, dims, heads = [1, 70, 100], (6, 5), 3
    rng = np.random.default_rng(0)
    firsts = np.full(200, 200, np.int32)
    spans, at = [], 0
    for length in lengths:
        firsts[at : at + length] = at
        spans.append((at, length))
        at += -(-length // 8) * 8
    q, keys = rng.normal(size=(2, 200, heads, dims[0])).astype(np.float32)
    values = rng.normal(size=(200, heads, dims[1])).astype(np.float32)
    given = (jnp.asarray(x) for x in (q, keys, values, firsts))
    out, lse = chunk_attention(*given, scale=SCALE, window=window)
    for begin, length in spans:
        for token in range(begin, begin + length):
            low = begin if window is None else max(begin, token - window + 1)
            for head in range(heads):
                scores = keys[low : token + 1, head] @ q[token, head] * SCALE
                weights, expected = softmax_of(scores)
                mixed = weights @ values[low : token + 1, head]
                np.testing.assert_allclose(out[token, head], mixed, atol=2e-5)
                np.testing.assert_allclose(lse[token, head], expected, atol=2e-5)
