"""Drafts of recurrent layers: results on copies of states, then the states of what counts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jengine.config import StateSpec
from jengine.layers.drafted_states import draft_turns, run_again, run_on_copies
from jengine.layers.recurrent import NOWHERE, RecurrentInputs, StateView
from jengine.models.short_conv import ConvolutionRule

WIDTH, CHANNELS = 3, 4
# A row with two drafts, padding of one that is missing, a row without drafts, and padding.
OFFSETS = [0, 1, 2, 3, 0, 0]
UNITS = [2, 2, 5, NOWHERE, 3, NOWHERE]  # where the state after each goes: the third to another one
READS = [2, 2, 2, 5, 3, 0]


def test_turns_are_the_tokens_of_each_row_in_order() -> None:
    found = draft_turns(jnp.array(OFFSETS), 3, 4).tolist()
    assert found == [[0, 1, 2, 3, 6], [4, 6, 6, 6, 6], [5, 6, 6, 6, 6]]


@pytest.mark.parametrize("accepted", [0, 1, 2])
def test_states_are_those_of_decoding_what_counts(accepted: int) -> None:
    rng = np.random.default_rng(1)
    kernel, tokens = rng.normal(size=(WIDTH, CHANNELS)), rng.normal(size=(6, CHANNELS))
    states = rng.normal(size=(2, 7, WIDTH - 1, CHANNELS)).astype(np.float32)
    view = StateView(
        jnp.array(READS), jnp.array(UNITS), jnp.zeros(6, bool), jnp.zeros(0, bool),
        jnp.zeros(0, jnp.int32), 6, 4, turns=draft_turns(jnp.array(OFFSETS), 3, 4),
    )  # fmt: skip
    rule = ConvolutionRule(jnp.asarray(kernel), None)
    inputs = RecurrentInputs(
        rule, jnp.asarray(tokens, jnp.float32), (StateSpec((WIDTH - 1, CHANNELS), (None, None)),)
    )
    out, kept = jax.jit(lambda given: run_on_copies(inputs, given, 1, view))((jnp.asarray(states),))
    assert np.array_equal(kept[0], states), "no state has changed"
    expected = states.copy()
    for first, count, slots in ((2, 1 + accepted, (0, 1, 2)), (3, 1, (4,))):
        text = np.concatenate([states[1, first], tokens[list(slots)]])
        for place, slot in enumerate(slots):
            window = text[place : place + WIDTH]
            np.testing.assert_allclose(out[slot], (window * kernel).sum(0), rtol=1e-5)
            if place < count:
                expected[1, UNITS[slot]] = window[1:]
    counts = jnp.array([True, accepted > 0, accepted > 1, False, True, False])
    [found] = jax.jit(lambda given: run_again(inputs, kept, 1, view, given))(counts)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
