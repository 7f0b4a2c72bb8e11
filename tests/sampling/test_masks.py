"""Token masks on the device: forbidden tokens, exact rows, NaN, log-probabilities."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jengine.sampling import (
    RowState,
    SamplingFeatures,
    admit,
    empty_row_state,
    pack_admission,
    sample,
)
from jengine.sampling.acceptance import drafted
from jengine.sampling.masks import allowed_logits, with_masks
from tests.sampling.oracle import KEY, make_inputs

R, S, V, L = 4, 3, 70, 16
WORDS = 3
MASKED = 1  # the row with a mask
NOW = np.array([0])  # after no draft
ROWS, POSITIONS = [0, MASKED, 2], [5, 5, 5]
jit_allowed, jit_with, jit_admit = jax.jit(allowed_logits), jax.jit(with_masks), jax.jit(admit)
jit_sample = jax.jit(sample, static_argnames=("features", "implementation"))


def words_of(*tokens: int) -> np.ndarray:
    """The mask that allows these tokens."""
    bits = np.zeros(WORDS * 32, np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def masked_state(*tokens: int) -> RowState:
    """A pool whose row MASKED allows these tokens, and the others all."""
    state = empty_row_state(R, V, L)
    state = jit_admit(state, np.int32(MASKED), pack_admission([1, 2], 1, vocab=V, max_len=L))
    words = words_of(*tokens)[None]
    return state._replace(mask=jit_with(state.mask, np.array([MASKED]), NOW, words))


def logits() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(S, V)).astype(np.float32)


def test_only_the_masked_row_changes_and_its_logits_keep_their_bits() -> None:
    allowed = [0, 31, 32, 63, 69]
    inputs = make_inputs(ROWS, POSITIONS, adjusted=[0, 1, 1])
    found = np.asarray(jit_allowed(logits(), masked_state(*allowed), inputs))
    assert np.array_equal(found[[0, 2]], logits()[[0, 2]])
    assert np.flatnonzero(np.isfinite(found[1])).tolist() == allowed
    assert np.array_equal(found[1, allowed], logits()[1, allowed])


def test_a_slot_that_is_not_adjusted_has_no_mask() -> None:
    inputs = make_inputs(ROWS, POSITIONS)
    assert np.array_equal(jit_allowed(logits(), masked_state(3), inputs), logits())


def test_rows_out_of_range_write_nothing_and_admission_allows_everything() -> None:
    state = masked_state(7)
    beyond = np.array([np.iinfo(np.int32).max])
    assert np.array_equal(jit_with(state.mask, beyond, NOW, words_of(1)[None]), state.mask)
    again = jit_admit(state, np.int32(MASKED), pack_admission([1], 1, vocab=V, max_len=L))
    assert (np.asarray(again.mask[MASKED]) == -1).all()


@pytest.mark.parametrize("implementation", [None, "cpu"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_masked_tokens_are_never_sampled(implementation: str | None, temperature: float) -> None:
    state, found = masked_state(3, 40), set()
    features = SamplingFeatures(random=temperature > 0, adjust=True)
    for seed in range(8):
        inputs = make_inputs(
            ROWS, POSITIONS, adjusted=[0, 1, 1], temperature=temperature, seed=[seed] * S
        )
        output, _ = jit_sample(
            logits(), state, inputs, features=features, key_data=KEY, implementation=implementation
        )
        found.add(int(output.tokens[1]))
    assert found == ({3, 40} if temperature else {3 if logits()[1, 3] > logits()[1, 40] else 40})


def test_raw_log_probabilities_are_those_of_allowed_tokens() -> None:
    inputs = make_inputs(ROWS, POSITIONS, adjusted=[0, 1, 0])
    features = SamplingFeatures(adjust=True, logprobs=2)
    output, _ = jit_sample(logits(), masked_state(3, 40), inputs, features=features, key_data=KEY)
    assert output.logprobs is not None
    assert np.isclose(np.exp(np.asarray(output.logprobs.values[1, 1:])).sum(), 1, atol=1e-5)
    assert sorted(np.asarray(output.logprobs.ids[1, 1:]).tolist()) == [3, 40]


def test_a_mask_does_not_hide_logits_that_are_not_finite() -> None:
    broken = logits()
    broken[1, 9] = np.nan
    inputs = make_inputs(ROWS, POSITIONS, adjusted=[0, 1, 0])
    features = SamplingFeatures(adjust=True)
    output, _ = jit_sample(broken, masked_state(3), inputs, features=features, key_data=KEY)
    assert output.tokens.tolist()[1] == -1 and output.tokens.tolist()[0] >= 0


def test_penalties_apply_to_what_the_mask_leaves() -> None:
    best, other = sorted([3, 40], key=lambda token: -logits()[1, token])
    state = empty_row_state(R, V, L)
    known = [1, best]  # generated once
    state = jit_admit(state, np.int32(MASKED), pack_admission(known, 1, vocab=V, max_len=L))
    words = words_of(3, 40)[None]
    state = state._replace(mask=jit_with(state.mask, np.array([MASKED]), NOW, words))
    inputs = make_inputs(ROWS, POSITIONS, adjusted=[0, 1, 0], presence=[0, 100, 0])
    features = SamplingFeatures(adjust=True)
    output, _ = jit_sample(logits(), state, inputs, features=features, key_data=KEY)
    assert output.tokens.tolist()[1] == other


def test_masks_alone_give_what_masks_and_adjustments_that_are_off_give() -> None:
    features = SamplingFeatures(adjust=True, logprobs=2, logprobs_mode="processed_logprobs")
    found = []
    for beyond in (0, 1):
        inputs = make_inputs(ROWS, POSITIONS, adjusted=[0, 1, 1], beyond_mask=beyond)
        output, _ = jit_sample(
            logits(), masked_state(3, 40), inputs, features=features, key_data=KEY
        )
        assert output.logprobs is not None
        found.append((output.tokens.tolist(), np.asarray(output.logprobs.values).tolist()))
    assert found[0] == found[1]


def test_a_grammar_takes_precedence_over_allowed_ids() -> None:
    state = empty_row_state(R, V, L)
    admission = pack_admission([1], 1, vocab=V, max_len=L, allowed=[5, 40])
    state = jit_admit(state, np.int32(MASKED), admission)
    inputs = make_inputs(ROWS, POSITIONS, adjusted=[0, 1, 0])
    features = SamplingFeatures(adjust=True)
    for tokens, expected in (((3, 40), 40), ((3,), 3)):
        mask = jit_with(state.mask, np.array([MASKED]), NOW, words_of(*tokens)[None])
        output, _ = jit_sample(
            logits(), state._replace(mask=mask), inputs, features=features, key_data=KEY
        )
        assert output.tokens.tolist()[1] == expected


def test_each_draft_has_a_mask_behind_it() -> None:
    state = empty_row_state(R, V, L, masked_drafts=2)
    rows, after = np.array([MASKED, MASKED]), np.array([0, 1])
    words = np.stack([words_of(3), words_of(40)])
    state = state._replace(mask=jit_with(state.mask, rows, after, words))
    # Slots of one row: after its last token, and after two drafts.
    drafts = drafted(jnp.array([9, 3, 40]), jnp.array([0, 1, 2]), 2)
    inputs = make_inputs([MASKED] * 3, [5, 6, 7], adjusted=[1] * 3)
    found = np.asarray(jit_allowed(logits(), state, inputs, drafts))
    allowed = [np.flatnonzero(np.isfinite(row)).tolist() for row in found]
    assert allowed == [[3], [40], list(range(V))]
    output, _ = jit_sample(
        logits(), state, inputs, features=SamplingFeatures(adjust=True), key_data=KEY, drafts=drafts
    )
    assert output.tokens.tolist()[:2] == [3, 40] and output.counts.tolist() == [True] * 3
