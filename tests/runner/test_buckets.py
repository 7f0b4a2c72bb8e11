"""Every plan within the limits finds a bucket that holds it, and ladders stay short."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jengine.config import CacheGroup, CacheSpec
from jengine.errors import ConfigError
from jengine.plan import Entries, Entry, Plan
from jengine.runner.plans.packing import bucket_for
from jengine.runner.plans.rows import Rows
from jengine.runner.variants.buckets import (
    Bucket,
    FirstRungs,
    Ladders,
    StepShapes,
    default_ladders,
    grow,
    rung,
)

TILE = 32
BLOCK = 16


def test_a_ladder_begins_and_ends_where_it_should() -> None:
    assert grow(2, 8, 4) == (2, 8)
    assert grow(2, 100, 4) == (2, 8, 32, 100)
    assert grow(8, 8, 4) == (8,)


def test_the_smallest_rung_that_is_enough_is_chosen() -> None:
    assert [rung("rows", (2, 8, 32), size) for size in (0, 2, 3, 8, 9)] == [2, 2, 8, 8, 32]
    with pytest.raises(AssertionError, match=r"33 rows; the largest bucket has 32"):
        rung("rows", (2, 8, 32), 33)


@pytest.mark.parametrize("rungs", [(), (4, 2), (2, 2), (0, 4), (-1, 4)])
def test_a_ladder_that_does_not_grow_is_refused(rungs: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"ladder decode_rows=.*growing positive sizes"):
        Ladders(rungs, (32,), (4,))


def test_a_pure_decode_has_no_prefill_segment() -> None:
    ladders = Ladders((2, 8, 32), (32, 128), (10,))
    assert ladders.smallest_for(3, 0, 1) == Bucket(8, 0, 10)
    assert ladders.smallest_for(0, 33, 1) == Bucket(32, 128, 10)
    assert ladders.smallest_for(9, 32, 10) == Bucket(32, 32, 10)
    assert ladders.largest == Bucket(32, 128, 10)
    assert str(ladders.largest) == "32+128x10"


def test_few_rows_beside_a_prefill_where_all_would_be_many() -> None:
    assert Ladders((2, 8, 32, 128, 256), (32,), (4,)).mixed_decode_rows(1024) == (8, 256)
    assert Ladders((2, 8, 32, 128, 256), (32,), (4,)).mixed_decode_rows(2048) == (256,)
    assert Ladders((2, 8, 32), (32,), (4,)).mixed_decode_rows(32) == (32,)
    assert Ladders((2,), (32,), (4,)).mixed_decode_rows(32) == (2,)


def test_drafts_have_sizes_of_their_own_but_not_beside_prompts() -> None:
    ladders = default_ladders(32, 512, 64, BLOCK, TILE, max_decode_rows=128)
    assert ladders.decode_rows == (2, 8, 32, 64, 128)
    *few, last = ladders.prefill_tokens
    assert {ladders.mixed_decode_rows(tokens)[-1] for tokens in few} == {32}
    # The largest can run every step.
    assert ladders.mixed_decode_rows(last)[-2:] == (32, 128)
    assert {*ladders.rare_buckets()} <= {*ladders.buckets()}
    assert ladders.smallest_for(32, last, 1).decode_rows == 32
    plain = default_ladders(32, 512, 64, BLOCK, TILE, max_decode_rows=32)
    assert plain == default_ladders(32, 512, 64, BLOCK, TILE)


GPU_LADDERS = Ladders((8, 32, 128, 256), (64, 128, 256, 512, 1024, 2048, 4096), (4,), full_step=256)


@pytest.mark.parametrize(
    ("decodes", "prompts", "rows", "tokens"),
    [
        (9, 32, 128, 128),  # no bucket is smaller than a step that reads the weights
        (9, 200, 32, 256),
        (130, 32, 256, 64),
        (3, 300, 32, 512),
        (40, 900, 128, 1024),
        (100, 2000, 128, 2048),
        (9, 4000, 256, 4096),
        (9, 0, 32, 0),
    ],
)
def test_mixed_steps_of_a_gpu_have_little_padding(
    decodes: int, prompts: int, rows: int, tokens: int
) -> None:
    assert GPU_LADDERS.smallest_for(decodes, prompts, 1) == Bucket(rows, tokens, 4)


def test_rare_variants_have_no_buckets_below_a_full_step() -> None:
    mixed = [bucket.prefill_tokens for bucket in GPU_LADDERS.rare_buckets()]
    assert [tokens for tokens in mixed if tokens] == [512, 4096]
    short = default_ladders(256, 96, 64, BLOCK, TILE, FirstRungs(8, 64, 256))
    assert short.prefill_tokens == (64, 96)
    assert Bucket(256, 96, 4) in set(short.rare_buckets())


limits = st.tuples(
    st.integers(1, 300),  # rows
    st.integers(TILE, 9000),  # batched tokens
    st.integers(2, 5000),  # context
)


@given(limits)
def test_buckets_are_few_and_found_again(sizes: tuple[int, int, int]) -> None:
    ladders = default_ladders(*sizes, BLOCK, TILE)
    buckets = list(ladders.buckets())
    assert len(buckets) == len(set(buckets)) <= 26
    assert ladders.largest in buckets
    for bucket in buckets:
        found = ladders.smallest_for(bucket.decode_rows, bucket.prefill_tokens, bucket.pages)
        assert found == bucket


@given(limits, st.data())
def test_every_plan_within_the_limits_has_a_bucket(
    sizes: tuple[int, int, int], data: st.DataObject
) -> None:
    rows, batched, context = sizes
    ladders = default_ladders(*sizes, BLOCK, TILE)
    shapes = StepShapes((CacheGroup(CacheSpec("full", 1, 8), (0,)),), BLOCK, TILE, rows, context)
    decodes = data.draw(st.integers(0, min(rows, batched)))
    tiles = data.draw(st.integers(0 if decodes else 1, (batched - decodes) // TILE or 1))
    chunks = [min(TILE, context)] * min(tiles, rows - decodes)
    if not decodes and not chunks:
        chunks = [2]
    starts = [data.draw(st.integers(0, context - 1))] * decodes + [0] * len(chunks)
    lengths = [1] * decodes + chunks
    count = len(lengths)
    entries = [Entry(*one) for one in zip(range(count), starts, lengths, strict=True)]
    plan = Plan(0, Entries.of(entries), num_decodes=decodes)
    bucket = bucket_for(plan, Rows(shapes), ladders)
    assert bucket in set(ladders.buckets())
    assert bucket.decode_rows >= decodes
    assert bucket.prefill_tokens >= len(chunks) * min(TILE, context)
    assert bucket.pages * BLOCK >= max(s + n for s, n in zip(starts, lengths, strict=True))


def test_a_window_needs_only_the_pages_it_can_see() -> None:
    full = CacheGroup(CacheSpec("full", 1, 8), (0,))
    window = CacheGroup(CacheSpec("sliding", 1, 8, window=20), (1,))
    shapes = StepShapes((full, window), BLOCK, TILE, 8, 1000)
    decode, mixed = Bucket(8, 0, 63), Bucket(8, 64, 63)
    assert shapes.group_pages(decode, full) == shapes.group_pages(mixed, full) == 63
    for bucket, span in ((decode, 20), (mixed, 20 + TILE - 1)):
        pages = shapes.group_pages(bucket, window)
        # Wherever the tokens in view begin within their first block, the pages hold them all.
        worst = max((first + span - 1) // BLOCK + 1 for first in range(BLOCK))
        assert pages == worst < 63
    assert shapes.group_pages(Bucket(8, 0, 1), window) == 1


def test_the_largest_bucket_covers_all_and_none_covers_a_larger_one() -> None:
    ladders = Ladders((2, 8, 64), (32, 128), (10, 20))
    buckets = list(ladders.buckets())
    assert all(ladders.largest.covers(bucket) for bucket in buckets)
    assert [bucket for bucket in buckets if bucket.covers(ladders.largest)] == [ladders.largest]
    assert Bucket(8, 32, 10).covers(Bucket(8, 0, 10))
    assert not Bucket(8, 0, 10, repeats=4).covers(Bucket(8, 0, 10))  # a burst packs more
    for larger in (Bucket(9, 0, 10), Bucket(8, 64, 10), Bucket(8, 0, 11)):
        assert not Bucket(8, 32, 10).covers(larger)
