"""Masks in plans, and how many go into one run of the program that writes them."""

from __future__ import annotations

import msgspec
import numpy as np

from jengine.plan import NO_ENTRIES, Plan, RowSampling, TokenMasks
from jengine.runner.programs.token_masks import SIZES, padded
from jengine.structured_outputs import GrammarSpec


def test_masks_travel_with_the_plan() -> None:
    words = np.arange(6, dtype=np.int32).reshape(2, 3) - 3
    masks = TokenMasks(
        np.array([4, 9], np.int32).tobytes(), np.array([0, 2], np.int32).tobytes(), words.tobytes()
    )
    plan = Plan(0, NO_ENTRIES, 0, masks=masks)
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=Plan)
    assert read == plan and read.masks is not None
    assert read.masks.rows.tolist() == [3, 8] and read.masks.after.tolist() == [0, 2]
    assert np.array_equal(read.masks.bits, words)


def test_padding_is_out_of_range_and_allows_everything() -> None:
    rows, after, words = padded(np.array([3]), np.array([1]), np.array([[5, 6]]), SIZES[0])
    assert rows.tolist()[0] == 3 and min(rows.tolist()[1:]) > 10**6 and after[0] == 1
    assert words[0].tolist() == [5, 6] and (words[1:] == -1).all()


def test_a_row_with_a_grammar_has_a_row_in_the_samplers_pool() -> None:
    grammar = GrammarSpec(kind="regex", text="a")
    assert RowSampling(grammar=grammar).has_sampler_state and not RowSampling().has_sampler_state
