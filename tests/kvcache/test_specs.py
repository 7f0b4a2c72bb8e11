"""Rules of the cache kinds."""

from __future__ import annotations

import pytest

from jengine.config import CacheSpec
from jengine.errors import ConfigError
from jengine.kvcache.kinds import blocks_needed
from jengine.kvcache.paged_group import rules_for


def rules(kind, window=None, block_size=4):
    return rules_for(CacheSpec(kind, 1, 8, window), block_size)


@pytest.mark.parametrize("window", [None, 0])
def test_a_sliding_cache_needs_a_window(window):
    with pytest.raises(ConfigError, match="window"):
        rules("sliding", window)


@pytest.mark.parametrize(
    ("window", "tokens", "blocks"),
    [(4, 0, 0), (4, 6, 0), (4, 7, 1), (4, 10, 1), (4, 11, 2), (1, 4, 1), (5, 8, 1)],
)
def test_blocks_before_the_window_are_skippable(window, tokens, blocks):
    assert rules("sliding", window).skippable(tokens) == blocks
    assert rules("full").skippable(tokens) == 0


@pytest.mark.parametrize(
    ("window", "cached", "hit"),
    [
        (5, "11111", 5),
        (5, "00001", 5),  # the 4 tokens before the end fill one block
        (6, "00001", 0),  # 5 tokens need two
        (6, "00110", 4),
        (6, "10010", 1),  # a prefix shorter than the window needs all of its blocks
        (9, "11010", 2),
        (1, "00000", 5),  # a window of one reads nothing back
        (5, "00000", 0),
    ],
)
def test_a_sliding_hit_needs_its_last_window_only(window, cached, hit):
    assert rules("sliding", window).longest_hit(lambda i: cached[i] == "1", 5) == hit


def test_latent_caches_have_the_rules_of_their_window():
    assert rules("latent", 5).skippable(8) == rules("sliding", 5).skippable(8) == 1
    assert rules("latent").skippable(8) == 0
    assert blocks_needed(CacheSpec("latent", 1, 8), 5, 4, 4) == 2


def test_a_full_hit_ends_at_the_first_gap():
    assert rules("full").longest_hit(lambda i: i != 3, 5) == 3
    assert rules("full").longest_hit(lambda i: True, 5) == 5


def test_a_chunked_cache_has_whole_blocks_to_a_chunk():
    with pytest.raises(ConfigError, match="block_size=4: expected a divisor of the 6 tokens"):
        rules("chunked", 6)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (7, 0), (8, 2), (15, 2), (16, 4)])
def test_blocks_of_earlier_chunks_are_skippable(tokens, blocks):
    assert rules("chunked", 8).skippable(tokens) == blocks
    assert CacheSpec("chunked", 1, 8, 8).first_read(tokens) == 4 * blocks


@pytest.mark.parametrize(
    ("cached", "hit"),
    [
        ("11111", 5),  # the last chunk is block 4
        ("00001", 5),
        ("00010", 4),  # behind block 3 a chunk begins, of which nothing is needed
        ("11100", 4),
        ("00000", 4),
    ],
)
def test_a_chunked_hit_needs_its_last_chunk_only(cached, hit):
    assert rules("chunked", 8).longest_hit(lambda i: cached[i] == "1", 5) == hit
    beginning = (cached + "0").index("0")
    assert rules("chunked", 32).longest_hit(lambda i: cached[i] == "1", 5) == beginning


def test_a_chunk_of_tokens_ends_where_one_of_attention_does():
    own = rules("chunked", 8)
    assert [own.chunk_end(start, 20) for start in (0, 7, 8, 17)] == [8, 8, 16, 20]
    assert rules("sliding", 8).chunk_end(3, 20) == rules("full").chunk_end(3, 20) == 20


@pytest.mark.parametrize("window", [4, 8, 12])
@pytest.mark.parametrize("chunk", [1, 2, 4, 7])
def test_chunked_blocks_needed_is_the_most_that_any_position_holds(window, chunk):
    spec, size, tokens = CacheSpec("chunked", 1, 8, window), 4, 64
    held = [
        (min(start + chunk, tokens) - 1) // size + 1 - spec.first_read(start) // size
        for start in range(tokens)
    ]
    assert blocks_needed(spec, tokens, size, chunk) == max(held)


@pytest.mark.parametrize("window", [1, 2, 3, 4, 5, 8, 9, 13])
@pytest.mark.parametrize("chunk", [1, 2, 4, 7])
def test_blocks_needed_is_the_most_that_any_alignment_holds(window, chunk):
    """Against counting the blocks touched by window and chunk, at each position."""
    spec, size, tokens = CacheSpec("sliding", 1, 8, window), 4, 64
    held = [
        (end - 1) // size + 1 - max(0, start - window + 1) // size
        for start in range(tokens)
        for end in (min(start + chunk, tokens),)
    ]
    needed = blocks_needed(spec, tokens, size, chunk)
    assert needed == max(held)
    assert blocks_needed(CacheSpec("full", 1, 8), tokens, size, chunk) == 16
    assert blocks_needed(spec, 3, size, chunk) == 1
