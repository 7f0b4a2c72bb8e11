"""Penalties, masks and bad words against numpy and torch; admission and re-admission."""

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jengine.sampling import (
    RowState,
    SamplingFeatures,
    admit,
    empty_row_state,
    pack_admission,
)
from jengine.sampling.adjust import adjust
from tests.sampling.oracle import KEY, apply_adjustments, jit_sample, make_inputs

R, S, V, L = 6, 4, 40, 32
jit_admit = jax.jit(admit)
jit_adjust = jax.jit(adjust)
ADJUST = SamplingFeatures(adjust=True)


def put(state: RowState, row: int, known: list[int], prompt_length: int, **given: Any) -> RowState:
    admission = pack_admission(known, prompt_length, vocab=V, max_len=L, **given)
    return jit_admit(state, np.int32(row), admission)


def random_logits(seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(S, V)) * 3).astype(np.float32)


def adjusted_row(
    logits: np.ndarray, known: list[int], prompt_length: int, **given: Any
) -> np.ndarray:
    """Row 2 of four, admitted in engine row 3 with neighbours that are not adjusted."""
    state = empty_row_state(R, V, L)
    for neighbour in (0, 1):
        state = put(state, neighbour, [1, 2, 3], 1, allowed=[1, 2], stop=[2], bad_words=[[1]])
    in_state = {"logit_bias", "allowed", "stop", "bad_words"}
    state = put(
        state,
        3,
        known,
        prompt_length,
        **{name: value for name, value in given.items() if name in in_state},
    )
    inputs = make_inputs(
        [0, R, 3, 1],
        [5, 0, len(known), 9],
        adjusted=[0, 0, 1, 0],
        prompt_length=prompt_length,
        **{name: value for name, value in given.items() if name not in in_state},
    )
    out = np.asarray(jit_adjust(logits, state, inputs))
    others = [0, 1, 3]
    assert np.array_equal(out[others].view(np.int32), logits[others].view(np.int32))
    return out[2]


tokens = st.lists(st.integers(0, 5), min_size=0, max_size=12)


@settings(deadline=None, max_examples=80)
@given(
    tokens,
    tokens,
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=5), max_size=8),
    st.one_of(st.none(), st.lists(st.integers(0, V - 1), min_size=1, max_size=9)),
    st.lists(st.integers(0, V - 1), max_size=3),
    st.dictionaries(st.integers(0, V - 1), st.floats(-20, 20, width=32), max_size=5),
    st.tuples(st.floats(0.5, 2), st.floats(-2, 2), st.floats(-2, 2)),
    st.integers(0, 26),
)
def test_everything_together_matches_numpy(
    prompt: list[int],
    generated: list[int],
    bad_words: list[list[int]],
    allowed: list[int] | None,
    stop: list[int],
    bias: dict[int, float],
    penalties: tuple[float, float, float],
    min_position: int,
) -> None:
    """Tokens 0 to 5 only, so that bad words match often, also across the prompt's end."""
    logits, known = random_logits(1), prompt + generated
    names = ("repetition", "presence", "frequency")
    plain = dict(zip(names, penalties, strict=True)) | {"min_position": min_position}
    shared = {"allowed": allowed, "stop": stop, "bad_words": bad_words}
    got = adjusted_row(logits, known, len(prompt), logit_bias=bias, **shared, **plain)
    expected = apply_adjustments(logits[2], known, len(prompt), bias=bias, **shared, **plain)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_penalties_match_torch() -> None:
    torch = pytest.importorskip("torch")
    logits = random_logits(2)
    prompt, generated = [1, 2, 3, 3], [3, 7, 7, 7, 30]
    got = adjusted_row(logits, prompt + generated, 4, repetition=1.7, presence=0.6, frequency=0.35)
    x = torch.tensor(logits[2])
    seen = torch.zeros(V, dtype=torch.bool)
    seen[prompt + generated] = True
    count = torch.bincount(torch.tensor(generated), minlength=V)
    factor = torch.where(seen, 1.7, 1.0)
    x = torch.where(x > 0, x / factor, x * factor)
    x = x - 0.35 * count - 0.6 * (count > 0)
    np.testing.assert_allclose(got, x.numpy(), rtol=1e-6, atol=1e-6)
    unseen = ~seen.numpy()
    assert np.array_equal(got[unseen], logits[2][unseen])


def banned(known: list[int], prompt_length: int, words: list[list[int]]) -> set[int]:
    row = adjusted_row(random_logits(3), known, prompt_length, bad_words=words)
    return set(np.flatnonzero(row == -np.inf).tolist())


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_bad_word_is_completed_only_by_generated_tokens(length: int) -> None:
    word = [11, 12, 13, 14, 15][-length:]
    assert banned([9, 9, *word[:-1]], 2, [word]) == {15}
    if length > 1:
        assert banned([9, 9, *word[:-1]], 3, [word]) == set()  # its first token is the prompt's
        assert banned([9, 9, *word[:-1], 8], 2, [word]) == set()
        assert banned([9, 9, 8, *word[1:-1]], 2, [word]) == set()


def test_bad_words_at_the_start_of_a_sequence_look_at_nothing_before_it() -> None:
    assert banned([], 0, [[39, 5], [6]]) == {6}
    assert banned([5], 0, [[1, 5, 7], [5, 8]]) == {8}


@pytest.mark.parametrize("known", [1023, 1024, 1025, 2047, 2500])
def test_bad_words_late_in_a_long_sequence(known: int) -> None:
    """The state remembers fewer tokens than a sequence has, but all that a bad word needs."""
    word = [(7 * i) % V for i in range(1024)]
    tokens = [1] * (known - 1023) + word[:-1]
    short, length = [3, 4], 3000
    admission = pack_admission(
        tokens, known - 1023, vocab=V, max_len=length, bad_words=[word[-1024 + 2 :], short]
    )
    state = jit_admit(empty_row_state(2, V, length), np.int32(1), admission)
    assert state.history.shape == (2, 1024)
    inputs = make_inputs([0, R, R, 1], [0, 0, 0, known], adjusted=[0, 0, 0, 1],
                         prompt_length=known - 1023)  # fmt: skip
    row = np.asarray(jit_adjust(random_logits(3), state, inputs))[3]
    assert np.flatnonzero(row == -np.inf).tolist() == [word[-1]]
    inputs = inputs._replace(prompt_length=inputs.prompt_length + 3)  # it begins in the prompt
    row = np.asarray(jit_adjust(random_logits(3), state, inputs))[3]
    assert not np.isinf(row).any()


def test_a_request_may_have_another_row_in_the_samplers_state() -> None:
    """Engine rows 5 and 3 use the rows 0 and 1 of a pool of two."""
    state = empty_row_state(2, V, L)
    state = put(put(state, 0, [1, 2], 1, allowed=[7]), 1, [1], 1, allowed=[9, 11])
    inputs = make_inputs([5, 0, 3, R], [2, 2, 1, 0])._replace(
        adjusted=np.array([1, 0, 2, 0], np.int32)
    )
    logits = random_logits(9)
    out = np.asarray(jit_adjust(logits, state, inputs))
    assert np.flatnonzero(np.isfinite(out[0])).tolist() == [7]
    assert np.flatnonzero(np.isfinite(out[2])).tolist() == [9, 11]
    assert np.array_equal(out[1], logits[1]) and np.array_equal(out[3], logits[3])
    output, after = jit_sample(logits, state, inputs, features=ADJUST, key_data=KEY)
    counted = np.asarray(after.marks) - np.asarray(state.marks)
    assert np.argwhere(counted).tolist() == [[0, 7], [1, int(output.tokens[2])]]


def test_as_many_bad_words_as_fit() -> None:
    words = [[token % V, 3, 4, 5, 6, 7, 8, token // 4] for token in range(128)]
    known = [0, 31, 3, 4, 5, 6, 7, 8]
    assert banned(known, 1, words) == {word[-1] for word in words if word[0] == 31}


@pytest.mark.parametrize(("position", "masked"), [(4, True), (6, True), (7, False)])
def test_stop_ids_are_masked_until_min_position(position: int, masked: bool) -> None:
    row = adjusted_row(random_logits(4), [1] * position, 4, stop=[8, 9], min_position=7)
    assert (row[[8, 9]] == -np.inf).all() == masked
    assert np.isfinite(np.delete(row, [8, 9])).all()


def test_a_mask_that_leaves_nothing_gives_way_to_allowed_ids() -> None:
    logits = random_logits(5)
    early = {"stop": [8], "min_position": 9}
    row = adjusted_row(logits, [1], 1, allowed=[8], **early)
    assert np.flatnonzero(row > -np.inf).tolist() == [8]
    row = adjusted_row(logits, [1], 1, allowed=[8, 9], bad_words=[[9], [8]], **early)
    assert np.flatnonzero(row > -np.inf).tolist() == [9]


def test_preempted_and_admitted_again_equals_never_preempted() -> None:
    """Four steps in a row, or two, admission into another row, and two more."""
    given = {"logit_bias": {3: 1.5}, "stop": [7], "bad_words": [[4, 5], [6, 6, 2]]}
    strong = {"repetition": 1.2, "presence": 1.0, "frequency": 3.0}

    def steps(state: RowState, row: int, known: list[int], count: int) -> RowState:
        for _ in range(count):
            position = len(known)
            logits = np.repeat(random_logits(6)[position % S : position % S + 1], S, axis=0)
            inputs = make_inputs(
                [0, row, R, 5],
                [3, position, 0, 3],
                adjusted=[0, 1, 0, 0],
                prompt_length=2,
                **strong,
            )
            output, state = jit_sample(logits, state, inputs, features=ADJUST, key_data=KEY)
            known.append(int(output.tokens[1]))
        return state

    straight: list[int] = [1, 2]
    kept = steps(put(empty_row_state(R, V, L), 1, straight, 2, **given), 1, straight, 4)

    resumed: list[int] = [1, 2]
    state = steps(put(empty_row_state(R, V, L), 1, resumed, 2, **given), 1, resumed, 2)
    state = put(state, 4, list(range(20)), 3, bad_words=[[1, 2, 3]], stop=[1])  # a former tenant
    state = steps(put(state, 4, resumed, 2, **given), 4, resumed, 2)

    assert resumed == straight and len(straight) == 6
    for one, other in zip(kept, state, strict=True):
        np.testing.assert_array_equal(np.asarray(one)[1], np.asarray(other)[4])


def test_only_adjusted_rows_are_recorded() -> None:
    logits = random_logits(7)
    logits[3, 5] = np.nan
    before = empty_row_state(R, V, L)
    inputs = make_inputs([0, R, 2, 4], [3, 3, 3, 3], adjusted=[0, 1, 1, 1])
    output, after = jit_sample(logits, before, inputs, features=ADJUST, key_data=KEY)
    changed = np.argwhere(np.asarray(after.marks) != 0).tolist()
    assert changed == [[2, int(output.tokens[2])]]
    assert np.argwhere(np.asarray(after.history) != -1).tolist() == [[2, 3]]
    assert int(output.tokens[3]) == -1


def test_a_masked_nan_still_makes_its_row_unusable() -> None:
    logits = random_logits(8)
    logits[1, 7] = np.nan
    state = put(empty_row_state(R, V, L), 2, [1, 2], 2, stop=[7])
    inputs = make_inputs([0, 2, R, 4], [2] * S, adjusted=[0, 1, 0, 0], min_position=5)
    output, _ = jit_sample(logits, state, inputs, features=ADJUST, key_data=KEY)
    assert (np.asarray(output.tokens) < 0).tolist() == [False, True, False, False]


def test_admission_past_the_last_row_writes_nothing() -> None:
    state = empty_row_state(R, V, L)
    after = put(state, R, [1, 2, 3], 2, stop=[4], logit_bias={1: 2.0})
    for one, other in zip(state, after, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bad_words": [[1]] * 129}, "129 bad words"),
        ({"bad_words": [[1] * 1025]}, "1025 tokens"),
        ({"bad_words": [[]]}, "no tokens"),
        ({"bad_words": [[1, V]]}, rf"bad words hold \[{V}\]"),
        ({"allowed": []}, "empty"),
        ({"allowed": [-1]}, r"allowed ids hold \[-1\]"),
        ({"stop": [V]}, "stop ids"),
        ({"logit_bias": {V: 1.0}}, "logit_bias"),
        ({"logit_bias": {1: float("nan")}}, "finite"),
    ],
)
def test_what_cannot_be_admitted_is_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        pack_admission([1, 2], 1, vocab=V, max_len=L, **given)


def test_known_tokens_must_fit() -> None:
    with pytest.raises(ValueError, match="max_len"):
        pack_admission([1] * (L + 1), 1, vocab=V, max_len=L)
    placeholder = pack_admission([V + 5, 1], 2, vocab=V, max_len=L)
    assert np.flatnonzero(placeholder.marks).tolist() == [1]
