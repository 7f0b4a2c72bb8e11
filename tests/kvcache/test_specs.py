"""Rules of the cache kinds."""

from __future__ import annotations

import pytest

from jengine.config import CacheSpec
from jengine.errors import ConfigError
from jengine.kvcache.kinds import blocks_needed
from jengine.kvcache.specs import rules_for


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
