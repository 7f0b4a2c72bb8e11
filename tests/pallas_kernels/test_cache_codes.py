"""Caches of int8 and FP8: codes and scales by their definition, and attention to what they stand
for, by XLA and by kernels."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels.cache_write import rotate_and_write, write_cache
from pallas_kernels.decode_attention import decode_attention
from pallas_kernels.layout import FP8_BITS, INT8, cache_shape, decoded, encoded, held_dtype
from pallas_kernels.prefill_attention import prefill_attention
from tests.pallas_kernels.implementations import CPU, IMPLEMENTATIONS, TRITON

DIM, KV_HEADS, BLOCK = 20, 2, 8
KERNELS = [CPU, TRITON]
KINDS = {"int8": INT8, "fp8": FP8_BITS}
# Triton's kernels multiply in bfloat16, in which queries and weights are rounded.
TOLERANCES = {"triton": {"rtol": 2e-2, "atol": 2e-2}}
EXACT = {"rtol": 1e-4, "atol": 1e-5}


def random(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def by_definition(head: np.ndarray, kind: str) -> np.ndarray:
    """A head after a trip through codes of one byte, in numpy."""
    largest = 127 if kind == "int8" else 448
    scale = np.float32(max(np.abs(head).max() / np.float32(largest), 1e-12))
    rounded = np.float32(ml_dtypes.bfloat16(scale))
    if rounded < scale:
        rounded = np.float32(np.nextafter(ml_dtypes.bfloat16(scale), ml_dtypes.bfloat16(np.inf)))
    units = head / rounded
    if kind == "int8":
        return np.round(units) * rounded
    return units.astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * rounded


@pytest.mark.parametrize("kind", KINDS)
def test_codes_stand_for_the_nearest_numbers(kind: str) -> None:
    heads = np.array(random(50, DIM))
    heads *= 10.0 ** np.arange(-25, 25)[:, None]
    heads[3], heads[4, 0] = 0.0, 7e-4
    heads[5] *= np.geomspace(1e-6, 1.0, DIM)
    codes, scales = encoded(jnp.asarray(heads), KINDS[kind])
    assert codes.shape == (50, DIM) and scales.shape == (50, 2)
    assert codes.dtype == scales.dtype == KINDS[kind]
    expected = np.stack([by_definition(head, kind) for head in heads])
    np.testing.assert_array_equal(decoded(codes, scales), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_has_its_codes_first_and_then_a_scale_for_each_head(kind: str) -> None:
    block, slot, tokens = 2, 5, jnp.asarray([2 * BLOCK + 5], jnp.int32)
    empty = jnp.zeros(cache_shape(1, 3, BLOCK, KV_HEADS, DIM, KINDS[kind]), KINDS[kind])
    k, v = random(1, KV_HEADS, DIM, seed=2), random(1, KV_HEADS, DIM, seed=3)
    held = np.asarray(write_cache(empty, 0, k, v, tokens))
    ends = BLOCK * KV_HEADS * DIM
    for plane, heads in enumerate((k, v)):
        codes, scales = (np.asarray(part)[0] for part in encoded(heads, KINDS[kind]))
        of_block = held[0, plane, block].reshape(-1)
        written = of_block[:ends].reshape(BLOCK, KV_HEADS, DIM)[slot]
        np.testing.assert_array_equal(written, codes)
        at = of_block[ends:].reshape(KV_HEADS, BLOCK, 2)[:, slot]
        np.testing.assert_array_equal(at, scales)
    assert np.count_nonzero(held) <= 2 * KV_HEADS * (DIM + 2)


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("kind", KINDS)
def test_the_kernels_programs_decode_every_pair_of_codes(kind: str) -> None:
    inline, kernels = (
        importlib.import_module(f"pallas_kernels.{name}")
        for name in ("launch.inline_assembly", "coded_heads")
    )
    codes = np.arange(256, dtype=np.uint8)
    codes = codes[(codes != 128) if kind == "int8" else (codes & 127 != 127)]  # there is no such
    pairs = np.stack(np.meshgrid(codes, codes), -1).reshape(-1, 2)
    pairs = pairs[: len(pairs) // 2 * 2].copy()
    one = np.asarray([[0x80, 0x3F]], np.uint8).view(KINDS[kind])  # 1.0 in bfloat16
    for half, name in enumerate((f"EVEN_{kind.upper()}", f"ODD_{kind.upper()}")):
        given = SimpleNamespace(data=pairs.view(np.int16)[:, 0])
        program = getattr(kernels, name).value
        found = inline.run_assembly(None, program, "=r,r", [given]).handle.data
        own = pairs[:, half].copy().view(KINDS[kind])
        expected = decoded(own[:, None], np.broadcast_to(one, (len(own), 2)))[:, 0]
        np.testing.assert_array_equal(found.view(ml_dtypes.bfloat16).astype(np.float32), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("implementation", KERNELS)
def test_the_kernels_write_the_bytes_that_xla_writes(kind: str, implementation: str) -> None:
    tokens, group = 40, 3
    empty = jnp.zeros(cache_shape(2, 6, BLOCK, KV_HEADS, DIM, KINDS[kind]), KINDS[kind])
    slots = jnp.asarray(np.random.default_rng(1).permutation(6 * BLOCK)[:tokens], jnp.int32)
    slots = slots.at[7].set(jnp.iinfo(jnp.int32).max)
    k, v = random(tokens, KV_HEADS, DIM, seed=2), random(tokens, KV_HEADS, DIM, seed=3)
    k = k.at[3].multiply(1e-9).at[4, 0, 5].set(1e4).at[5].set(0.0)
    both = "xla", implementation
    made = [write_cache(empty, 1, k, v, slots, implementation=one) for one in both]
    np.testing.assert_array_equal(*made)
    qkv = random(tokens, KV_HEADS, group + 2, DIM, seed=4)
    made = [rotate_and_write(empty, 1, qkv, slots, implementation=one)[1] for one in both]
    np.testing.assert_array_equal(*made)


@pytest.mark.parametrize("implementation", KERNELS)
@pytest.mark.parametrize("kind", KINDS)
def test_heads_made_of_codes_keep_their_bytes(
    kind: str, implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where `/` rounds up, as on some GPUs: the next scale would be half a percent larger."""
    builder = importlib.import_module("triton.runtime.interpreter").InterpreterBuilder

    def rounded_up(self: Any, a: Any, b: Any) -> Any:
        return self.binary_op(a, b, lambda x, y: np.nextafter(x / y, np.float32(np.inf)))

    monkeypatch.setattr(builder, "create_fdiv", rounded_up)
    empty = jnp.zeros(cache_shape(1, 2, BLOCK, KV_HEADS, DIM, KINDS[kind]), KINDS[kind])
    slots = jnp.arange(2 * BLOCK, dtype=jnp.int32)
    k, v = (
        decoded(*encoded(random(2 * BLOCK, KV_HEADS, DIM, seed=seed), KINDS[kind]))
        for seed in (2, 3)
    )
    both = [write_cache(empty, 0, k, v, slots, one) for one in ("xla", implementation)]
    np.testing.assert_array_equal(*both)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_attention_reads_what_was_written(kind: str, implementation: str) -> None:
    lengths, pages = [5, 64, 131, 0], 17
    tokens = sum(lengths)
    draw = np.random.default_rng(5)
    tables = jnp.asarray(draw.permutation(len(lengths) * pages).reshape(-1, pages), jnp.int32)
    slots = [
        int(tables[row, at // BLOCK]) * BLOCK + at % BLOCK
        for row, length in enumerate(lengths)
        for at in range(length)
    ]
    k, v = random(tokens, KV_HEADS, DIM, seed=6), random(tokens, KV_HEADS, DIM, seed=7)
    plain = jnp.zeros(cache_shape(1, len(lengths) * pages, BLOCK, KV_HEADS, DIM))
    small = jnp.full(
        cache_shape(1, len(lengths) * pages, BLOCK, KV_HEADS, DIM, KINDS[kind]), -1, KINDS[kind]
    )  # scales of slots that are not used are NaN
    assert held_dtype(small) == jnp.float32
    where = jnp.asarray(slots, jnp.int32)
    small = write_cache(small, 0, k, v, where, implementation=implementation)
    through = [decoded(*encoded(one, KINDS[kind])) for one in (k, v)]
    plain = write_cache(plain, 0, *through, where, implementation="xla")
    starts = jnp.zeros(len(lengths), jnp.int32)
    options: dict[str, Any] = {"head_dim": DIM}
    q = random(len(lengths), 6, DIM, seed=8)
    given = tables, starts, jnp.asarray(lengths, jnp.int32)
    found = decode_attention(q, small, 0, *given, implementation=implementation, **options)
    expected = decode_attention(q, plain, 0, *given, implementation="xla", **options)
    tolerance = TOLERANCES.get(implementation, EXACT)
    np.testing.assert_allclose(found, expected, **tolerance)
    positions = jnp.asarray([[0, 1, 2, 3], [60, 61, 62, 63], [127, 128, 129, 130], [-1] * 4])
    given = tables, starts, positions.reshape(-1).astype(jnp.int32)
    q = random(4 * len(lengths), 6, DIM, seed=9)
    found = prefill_attention(q, small, 0, *given, implementation=implementation, **options)
    expected = prefill_attention(q, plain, 0, *given, implementation="xla", **options)
    np.testing.assert_allclose(found, expected, **tolerance)
