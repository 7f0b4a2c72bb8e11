"""Drafts: what is accepted, that the tokens are those without drafts, and that nothing is counted
twice. Logits are made by a small fixed function of the whole text, so they depend on every token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from jengine.plan import RowSampling
from jengine.sampling import (
    Admission,
    RowState,
    SamplingFeatures,
    admit,
    empty_row_state,
    pack_admission,
)
from jengine.sampling.acceptance import Drafted, accepted, drafted, last_of_each
from jengine.sampling.sampler import sample
from tests.sampling.oracle import KEY, make_inputs

V = 8
MOST = 3  # drafts of a row
ADJUSTED = SamplingFeatures(random=True, adjust=True)
jit_sample = jax.jit(sample, static_argnames=("features",))
jit_drafted = jax.jit(drafted, static_argnums=2)
jit_admit = jax.jit(admit)
QUICK = settings(derandomize=True, deadline=None, max_examples=60)


def expected_counts(tokens: list[int], ran: list[int], offsets: list[int]) -> list[bool]:
    counts: list[bool] = []
    for slot, offset in enumerate(offsets):
        right = offset == 0 or (ran[slot] >= 0 and tokens[slot - 1] == ran[slot] and counts[-1])
        counts.append(right)
    return counts


@settings(QUICK, max_examples=15)
@given(st.data())
@pytest.mark.slow
def test_a_slot_counts_if_all_drafts_before_it_were_sampled(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(0, MOST), min_size=1, max_size=6))
    offsets = [offset for count in counts for offset in range(count + 1)]
    drawn = st.lists(st.integers(-1, 1), min_size=len(offsets), max_size=len(offsets))
    tokens, ran = data.draw(drawn), data.draw(drawn)
    drafts = drafted(jnp.array(ran, jnp.int32), jnp.array(offsets, jnp.int32), MOST)
    expected = expected_counts(tokens, ran, offsets)
    found = accepted(jnp.array(tokens, jnp.int32), drafts)
    assert found.tolist() == expected
    last = last_of_each(found, drafts.offsets).tolist()
    for slot, offset in enumerate(offsets):
        follows = offsets[slot + 1 : slot + 2] == [offset + 1] and expected[slot + 1]
        assert last[slot] == (expected[slot] and not follows)
    for slot, offset in enumerate(offsets):
        known = [ran[slot - back] for back in range(offset)]
        assert drafts.earlier[slot].tolist() == known + [-1] * (MOST - offset)


def logits_after(text: list[int]) -> np.ndarray:
    """Flat enough that any token may be drawn."""
    seed = sum((place + 1) * (token + 3) for place, token in enumerate(text)) % 100_003
    return np.random.default_rng(seed).normal(size=V).astype(np.float32)


def step(
    texts: list[list[int]], drafts: list[list[int]], state: RowState, given: dict[str, Any]
) -> tuple[list[list[int]], RowState]:
    """One step of rows with these texts and drafts: the tokens that count, and the new state.

    There are always as many slots, so that one program runs; the last ones are padding.
    """
    owners = [(row, offset) for row, own in enumerate(drafts) for offset in range(len(own) + 1)]
    padding = len(texts) * (MOST + 1) - len(owners)
    rows = [row for row, _ in owners] + [0] * padding
    offsets = [offset for _, offset in owners] + [0] * padding
    before = [texts[row] + drafts[row][:offset] for row, offset in owners] + [[0]] * padding
    settings = {name: [values[row] for row in rows] for name, values in given.items()}
    settings["adjusted"] = [1] * len(owners) + [0] * padding
    ran = [text[-1] for text in before]
    output, state = jit_sample(
        np.stack([logits_after(text) for text in before]),
        state,
        make_inputs(rows, [len(text) for text in before], **settings),
        features=ADJUSTED,
        key_data=KEY,
        drafts=jit_drafted(np.array(ran, np.int32), np.array(offsets, np.int32), MOST),
    )
    results: list[list[int]] = [[] for _ in texts]
    tokens, counts = output.tokens.tolist(), output.counts.tolist()
    for (row, _), token, counted in zip(owners, tokens, counts, strict=False):
        if counted:
            results[row].append(token)
    return results, state


PROMPTS = [[1, 2, 3], [4, 4], [0, 7, 0, 7]]
ROW_SETTINGS: dict[str, list[Any]] = {
    "temperature": [0.0, 1.0, 1.3],
    "top_k": [0, 0, 5],
    "top_p": [1.0, 0.9, 1.0],
    "min_p": [0.0, 0.05, 0.0],
    "seed": [1, 2, 3],
    "repetition": [1.4, 1.0, 1.2],
    "presence": [0.0, 0.7, 0.0],
    "frequency": [0.9, 0.0, 0.4],
    "prompt_length": [3, 2, 4],
    "min_position": [8, 2, 7],
}
SAMPLING = [
    RowSampling(repetition_penalty=1.4, frequency_penalty=0.9, min_tokens=5, stop_ids=[0, 5]),
    RowSampling(presence_penalty=0.7, bad_words=[[3, 4], [1], [2, 2, 6]]),
    RowSampling(repetition_penalty=1.2, logit_bias={3: 1.5}, bad_words=[[3, 3]], min_tokens=3,
                stop_ids=[2], allowed_ids=[0, 2, 3, 4, 5]),
]  # fmt: skip


def admission_of(prompt: list[int], sampling: RowSampling) -> Admission:
    return pack_admission(
        prompt,
        len(prompt),
        vocab=V,
        max_len=64,
        logit_bias=sampling.logit_bias,
        allowed=sampling.allowed_ids,
        stop=sampling.stop_ids,
        bad_words=sampling.bad_words,
    )


def first_state() -> RowState:
    state = empty_row_state(len(PROMPTS), V, 64)
    for row, (prompt, sampling) in enumerate(zip(PROMPTS, SAMPLING, strict=True)):
        state = jit_admit(state, np.int32(row), admission_of(prompt, sampling))
    return state


def decode(
    propose: Callable[[int, list[int]], list[int]], count: int
) -> tuple[list[list[int]], RowState, int]:
    """All rows until each has `count` tokens: the texts, the state, and the steps taken."""
    texts, state, steps = [list(prompt) for prompt in PROMPTS], first_state(), 0
    while min(len(text) - len(p) for text, p in zip(texts, PROMPTS, strict=True)) < count:
        drafts = [propose(row, text) for row, text in enumerate(texts)]
        found, state = step(texts, drafts, state, ROW_SETTINGS)
        texts = [text + more for text, more in zip(texts, found, strict=True)]
        steps += 1
    return texts, state, steps


def test_right_and_wrong_drafts_give_the_tokens_of_plain_sampling() -> None:
    """With penalties, bad words, minimum lengths, bias and masks, greedy and drawn."""
    plain, _, steps = decode(lambda row, text: [], 24)
    assert steps == 24
    chance = np.random.default_rng(0)

    def propose(row: int, text: list[int]) -> list[int]:
        known = plain[row][len(text) : len(text) + chance.integers(0, MOST + 1)]
        return [int(chance.integers(0, V)) if chance.random() < 0.2 else one for one in known]

    texts, _, steps = decode(propose, 20)
    assert steps < 20
    for text, own in zip(texts, plain, strict=True):
        assert text[: len(own)] == own[: len(text)]


def test_the_state_counts_accepted_tokens_once() -> None:
    plain, expected, _ = decode(lambda row, text: [], 12)

    def propose(row: int, text: list[int]) -> list[int]:
        right = plain[row][len(text) : len(text) + MOST]
        return [*right[:1], (right[1] + 1) % V, 0] if len(right) == MOST else []

    texts, state, steps = decode(propose, 12)
    assert steps < 12
    assert texts == plain
    for kept, wanted in zip(state[:3], expected[:3], strict=True):
        assert kept.tolist() == wanted.tolist()


def test_a_row_without_finite_logits_fails_and_takes_no_draft() -> None:
    logits = np.zeros((3, V), np.float32)
    logits[0] = np.nan
    drafts = Drafted(jnp.array([0, 1, 2]), jnp.array([[-1, -1], [0, -1], [0, 0]]))
    inputs = make_inputs([0, 0, 0], [4, 5, 6])
    output, _ = jit_sample(
        logits, None, inputs, features=SamplingFeatures(), key_data=KEY, drafts=drafts
    )
    assert output.tokens[0] == -1
    assert output.counts.tolist() == [True, False, False]


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_the_tokens_after_accepted_drafts_have_the_models_distribution(temperature: float) -> None:
    """Chi-square over many seeds, in rows whose first draft was accepted."""
    rows = 6000
    logits = np.array([[1.0, 0.0, 0.5, -1.0, 0.2, -0.3, 0.7, 0.1]], np.float32)
    first = np.repeat(logits, 2 * rows, axis=0)
    offsets = np.tile(np.array([0, 1], np.int32), rows)
    ran = np.tile(np.array([5, 0], np.int32), rows)  # each row drafts token 0
    inputs = make_inputs(
        np.repeat(np.arange(rows), 2).tolist(), [7, 8] * rows, temperature=temperature,
        seed=np.repeat(np.arange(rows), 2).tolist(),
    )  # fmt: skip
    output, _ = jit_sample(
        first, None, inputs, features=SamplingFeatures(random=True), key_data=KEY,
        drafts=jit_drafted(ran, offsets, 1),
    )  # fmt: skip
    tokens, counts = np.asarray(output.tokens), np.asarray(output.counts)
    share = np.exp(logits[0].astype(np.float64) / temperature)
    share /= share.sum()
    second = tokens[1::2][counts[1::2]]
    assert abs(len(second) / rows - share[0]) < 5 * np.sqrt(share[0] / rows)
    for drawn in (tokens[::2], second):
        expected = share * len(drawn)
        observed = np.bincount(drawn, minlength=V)
        assert ((observed - expected) ** 2 / expected).sum() < 29.9  # p = 0.0001 with 7 degrees
