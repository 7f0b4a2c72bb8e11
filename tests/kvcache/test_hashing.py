"""Block hashes: equal for equal content only."""

from __future__ import annotations

from jengine.kvcache.hashing import THIS_PROCESS, block_hash, extra_keys, group_suffix, root_hash
from tests.kvcache.cache_cases import make_request


def test_the_chain_depends_on_every_block_before():
    root = root_hash(0)
    first, other = block_hash(root, [1, 2]), block_hash(root, [1, 3])
    assert block_hash(first, [4, 5]) != block_hash(other, [4, 5])
    assert block_hash(first, [4, 5]) == block_hash(block_hash(root, [1, 2]), [4, 5])


def test_weights_version_is_in_the_root():
    assert len({root_hash(version) for version in (-1, 0, 1, 256)}) == 4


def test_what_the_cache_stores_is_in_the_root():
    assert len({root_hash(0, stored_as) for stored_as in ("", "bfloat16", "int8", "fp8")}) == 4


def test_token_boundaries_are_unambiguous():
    root = root_hash(0)
    seen = {block_hash(root, tokens) for tokens in ([1, 2], [2, 1], [1, 2, 0], [258], [1], [])}
    assert len(seen) == 6


def test_extra_keys_never_collide():
    root = root_hash(0)
    variants = [
        [],
        [("cache_salt", "a")],
        [("lora", "a", "")],
        [("lora", "", "a")],
        [("lora", "cache_salt", "a")],
        [("lora", "a", ""), ("cache_salt", "a")],
        [("cache_salt", "aa")],
        [("cache_salt", "a"), ("a",)],
        [("cache_salt", "a", "a")],
    ]
    assert len({block_hash(root, [1], keys) for keys in variants}) == len(variants)


def test_text_that_is_not_valid_unicode_is_hashed():
    assert block_hash(root_hash(0), [1], [("cache_salt", "\ud800")])


def test_the_salt_is_in_the_first_block_only():
    wire = make_request([1], cache_salt="s", taps=3).wire
    assert extra_keys(wire, 0, 4) == [("cache_salt", "s"), ("taps", "3", THIS_PROCESS)]
    assert extra_keys(wire, 1, 4) == []
    assert extra_keys(make_request([1]).wire, 0, 4) == []


def test_an_empty_salt_is_still_a_salt():
    assert extra_keys(make_request([1], cache_salt="").wire, 0, 4) == [("cache_salt", "")]


def test_groups_have_different_keys():
    assert group_suffix(0) != group_suffix(1)
