"""The whole sampler: greedy, random, independence of the batch, log-probabilities, bad rows."""

import itertools
import os
import subprocess
import sys

import jax
import ml_dtypes
import numpy as np
import pytest

from jengine.sampling import (
    SampleOutput,
    SamplingFeatures,
    SamplingInput,
    empty_row_state,
    score_tokens,
    seed_words,
)
from jengine.sampling.features import LogprobsMode
from jengine.sampling.row_operations import gumbel, row_keys
from tests.marks import slow
from tests.sampling.oracle import KEY, descending, jit_sample, log_softmax, make_inputs

# Few shapes, used again and again: most of the time goes into compiling.
V = 24
ROWS = 8
DRAWS = 8192
GREEDY = SamplingFeatures()
RANDOM = SamplingFeatures(random=True)


def run(logits: np.ndarray, inputs: SamplingInput, features: SamplingFeatures) -> SampleOutput:
    output, state = jit_sample(logits, None, inputs, features=features, key_data=KEY)
    assert state is None
    return jax.tree.map(np.asarray, output)


def random_logits(rows: int, vocab: int = V, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(rows, vocab)) * 2).astype(np.float32)


def test_greedy_takes_the_lowest_index_of_equal_logits() -> None:
    logits = np.full((ROWS, V), -3.0, np.float32)
    logits[0, [5, 9]] = 2.0
    logits[1, [0, V - 1]] = 2.0
    logits[2, :] = -np.inf
    logits[2, 7] = -1e30
    inputs = make_inputs(range(ROWS), [1] * ROWS)
    for features in (GREEDY, RANDOM):  # temperature 0 is greedy in a random program as well
        assert run(logits, inputs, features).tokens.tolist() == [5, 0, 7, 0, 0, 0, 0, 0]


def test_greedy_rows_ignore_filters_and_temperatures_of_others() -> None:
    logits = random_logits(3)
    inputs = make_inputs(
        range(3), [1] * 3, temperature=[0, 1, 9e-6], top_k=[3, 0, 2], top_p=0.1, min_p=0.9
    )
    features = SamplingFeatures(random=True, logprobs=V, logprobs_mode="processed_logits")
    output = run(logits, inputs, features)
    for row in (0, 2):
        assert output.tokens[row] == logits[row].argmax()
        assert np.array_equal(output.logprobs.values[row, 1:], np.sort(logits[row])[::-1])


@pytest.mark.parametrize("features", [GREEDY, SamplingFeatures(random=True, adjust=True)])
@pytest.mark.parametrize("poison", ["nan", "all -inf", *slow("inf")])
@pytest.mark.parametrize("vocab", [101, 5000])  # XLA reduces long rows by other code
def test_a_row_that_is_not_finite_answers_minus_one_alone(
    features: SamplingFeatures, poison: str, vocab: int
) -> None:
    logits = random_logits(4, vocab=vocab)
    inputs = make_inputs(range(4), [1] * 4, temperature=0.9, top_k=50, top_p=0.9, adjusted=1)
    state = empty_row_state(4, vocab, 8) if features.adjust else None
    clean, _ = jit_sample(logits, state, inputs, features=features, key_data=KEY)
    for place in (0, 63, 100, vocab - 1):
        bad = logits.copy()
        if poison == "all -inf":
            bad[2] = -np.inf
        else:
            bad[2, place] = np.nan if poison == "nan" else np.inf
        output, _ = jit_sample(bad, state, inputs, features=features, key_data=KEY)
        expected = np.asarray(clean.tokens).copy()
        assert expected[2] >= 0
        expected[2] = -1
        assert np.array_equal(output.tokens, expected)


def test_a_token_depends_on_logits_seed_and_position_only() -> None:
    """Any engine row, batch size, order and padding; another seed or position is another draw."""
    logits = random_logits(ROWS)
    seeds = [3, 3, 2**40, 2**40 + 1, -5, 7, 7, 2**63 + 9]
    positions = [4, 5, 4, 4, 4, 0, 1, 2]
    wanted = {"temperature": 1.1, "top_k": 12, "top_p": 0.95}
    whole = run(logits, make_inputs(range(ROWS), positions, seed=seeds, **wanted), RANDOM).tokens
    for order in ([5], [7, 1, 3], [6, 2, 0], [0, 1, 2, 3, 4, 5, 6, 7][::-1]):
        inputs = make_inputs(
            [9] * len(order),
            [positions[i] for i in order],
            seed=[seeds[i] for i in order],
            **wanted,
        )
        assert run(logits[order], inputs, RANDOM).tokens.tolist() == whole[order].tolist()
    padded = make_inputs(
        [2, 99, 99],
        [4, 0, 0],
        seed=[2**40, 0, 0],
        temperature=[1.1, 0, 0],
        top_k=[12, 0, 0],
        top_p=[0.95, 1, 1],
    )
    padding = np.zeros((2, V), np.float32)
    assert run(np.concatenate([logits[2:3], padding]), padded, RANDOM).tokens[0] == whole[2]


def test_seed_and_position_and_engine_seed_each_change_the_draw() -> None:
    flat = np.zeros((DRAWS, V), np.float32)
    count, same = range(DRAWS), [1] * DRAWS
    by_position = make_inputs(count, count, seed=same, temperature=1)
    first = run(flat, by_position, RANDOM).tokens
    low_word = run(flat, make_inputs(count, same, seed=count, temperature=1), RANDOM).tokens
    shifted = [number << 32 for number in count]
    high_word = run(flat, make_inputs(count, same, seed=shifted, temperature=1), RANDOM).tokens
    other, _ = jit_sample(flat, None, by_position, features=RANDOM, key_data=seed_words(1))
    for one, two in itertools.combinations([first, low_word, high_word, other.tokens], 2):
        assert len(set(one[:200].tolist())) == V
        agreement = np.mean(np.asarray(one) == np.asarray(two))
        assert abs(agreement - 1 / V) < 0.01  # independent streams


@pytest.mark.parametrize(
    ("parameters", "kept"),
    [
        ({"temperature": 1.0}, V),
        ({"temperature": 0.5}, V),
        ({"temperature": 1.7, "top_k": 6}, 6),
        ({"temperature": 1.0, "top_p": 0.8}, None),
        ({"temperature": 1.0, "min_p": 0.1}, None),
    ],
)
def test_draws_follow_the_filtered_distribution(
    parameters: dict[str, float], kept: int | None
) -> None:
    """Chi-square at fixed seeds."""
    row = random_logits(1, seed=4)[0]
    scaled = log_softmax(row / parameters["temperature"])
    order = descending(row)
    if kept is None:
        mass = np.cumsum(np.exp(scaled[order]))
        by_p = int(np.searchsorted(mass, parameters.get("top_p", 2.0))) + 1
        by_min_p = int((np.exp(scaled - scaled.max()) >= parameters.get("min_p", 0.0)).sum())
        kept = min(by_p, by_min_p, V)
        assert 1 < kept < V
    expected = np.zeros(V)
    expected[order[:kept]] = np.exp(scaled[order[:kept]])
    expected *= DRAWS / expected.sum()

    seeds = [number % 7 for number in range(DRAWS)]
    inputs = make_inputs(range(DRAWS), range(DRAWS), seed=seeds, **parameters)
    tokens = run(np.tile(row, (DRAWS, 1)), inputs, RANDOM).tokens
    observed = np.bincount(tokens, minlength=V)
    assert observed[expected == 0].sum() == 0
    common = expected >= 5
    statistic = ((observed - expected)[common] ** 2 / expected[common]).sum()
    freedom = common.sum() - 1
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)


def test_noise_is_fine_grained_where_it_decides() -> None:
    """Large values decide over rare tokens; jax.random.gumbel repeats about 2,000 of these."""
    keys = row_keys(KEY, np.zeros((32, 2), np.uint32), np.arange(32, dtype=np.int32))
    noise = np.asarray(jax.jit(gumbel, static_argnums=1)(keys, 100_000)).ravel()
    assert np.isfinite(noise).all()
    large = noise[noise > np.log(256)]
    assert abs(large.size / noise.size - 1 / 256) < 1e-4
    assert large.size - np.unique(large).size < 50
    assert abs(noise.mean() - np.euler_gamma) < 0.003


def modes_case() -> tuple[np.ndarray, SamplingInput]:
    logits = random_logits(3, seed=5)
    logits[0, [3, 8]] = 9.0
    limits = {"top_k": [0, 5, 0], "top_p": [1, 1, 0.8]}
    inputs = make_inputs(range(3), [4] * 3, seed=[1, 2, 3], temperature=[0, 0.7, 2], **limits)
    return logits, inputs


@pytest.mark.parametrize(
    ("mode", "k"),
    [
        ("raw_logprobs", 4),
        ("processed_logprobs", 4),
        ("raw_logits", 4),
        ("processed_logits", V),
        ("raw_logprobs", 0),
    ],
)
def test_logprobs_modes_and_ranks(mode: LogprobsMode, k: int) -> None:
    logits, inputs = modes_case()
    features = SamplingFeatures(random=True, logprobs=k, logprobs_mode=mode)
    output = run(logits, inputs, features)
    values, ids, rank = output.logprobs
    assert values.shape == ids.shape == (3, k + 1)
    for row in range(3):
        expected = logits[row].astype(np.float64)
        if mode.startswith("processed"):
            expected = processed_row(expected, inputs, row)
        if mode.endswith("logprobs"):
            expected = log_softmax(expected)
        token = output.tokens[row]
        assert ids[row].tolist() == [token, *descending(expected)[:k]]
        np.testing.assert_allclose(values[row], expected[ids[row]], rtol=1e-5, atol=1e-5)
        assert rank[row] == (expected >= expected[token]).sum()


def processed_row(row: np.ndarray, inputs: SamplingInput, index: int) -> np.ndarray:
    temperature = float(inputs.temperature[index]) or 1.0
    row = row / temperature
    order = descending(row)
    keep = int(inputs.top_k[index]) or row.size
    if inputs.top_p[index] < 1:
        keep = int(np.searchsorted(np.cumsum(np.exp(log_softmax(row)[order])), 0.8)) + 1
    row[order[keep:]] = -np.inf
    return row


def test_rank_counts_ties_and_greedy_is_best() -> None:
    logits, inputs = modes_case()
    output = run(logits, inputs, SamplingFeatures(logprobs=2))
    assert output.tokens.tolist() == logits.argmax(-1).tolist()
    assert output.logprobs.rank.tolist() == [2, 1, 1]
    assert output.logprobs.ids[0].tolist() == [3, 3, 8]
    assert run(logits, inputs, GREEDY).logprobs is None


def test_raw_logprobs_see_nothing_of_the_adjustments() -> None:
    logits = random_logits(2, vocab=V)
    state = empty_row_state(2, V, 8)
    state = state._replace(bias=state.bias.at[0].set(-np.inf).at[0, 5].set(0.0))
    inputs = make_inputs([0, 1], [1, 1], adjusted=[1, 0])
    features = SamplingFeatures(adjust=True, logprobs=1)
    output, _ = jit_sample(logits, state, inputs, features=features, key_data=KEY)
    assert int(output.tokens[0]) == 5
    np.testing.assert_allclose(
        output.logprobs.values[0],
        log_softmax(logits[0])[[5, logits[0].argmax()]],
        rtol=1e-5,
    )
    features = SamplingFeatures(adjust=True, logprobs=0, logprobs_mode="processed_logprobs")
    output, _ = jit_sample(logits, state, inputs, features=features, key_data=KEY)
    assert float(output.logprobs.values[0, 0]) == 0.0


def test_score_tokens_has_the_layout_of_sampled_logprobs() -> None:
    logits = random_logits(3, seed=8)
    targets = np.array([4, 0, -1], np.int32)
    values, ids, rank = jax.jit(score_tokens, static_argnums=2)(logits, targets, 3)
    for row in range(2):
        expected = log_softmax(logits[row])
        assert ids[row].tolist() == [targets[row], *descending(logits[row])[:3]]
        np.testing.assert_allclose(values[row], expected[np.asarray(ids[row])], rtol=1e-5)
        assert rank[row] == (expected >= expected[targets[row]]).sum()
    assert np.isnan(values[2, 0]) and rank[2] == 0


def test_bfloat16_logits_are_sampled_in_float32() -> None:
    logits = np.asarray(random_logits(ROWS), ml_dtypes.bfloat16)
    inputs = make_inputs(range(ROWS), [4] * ROWS, seed=range(ROWS), temperature=0.3, top_p=0.9)
    low = run(logits, inputs, RANDOM).tokens
    assert np.array_equal(low, run(logits.astype(np.float32), inputs, RANDOM).tokens)


def test_adjust_without_state_is_refused() -> None:
    with pytest.raises(ValueError, match="empty_row_state"):
        run(random_logits(1), make_inputs([0], [1]), SamplingFeatures(adjust=True))


def test_features_refuse_what_they_do_not_know() -> None:
    with pytest.raises(ValueError, match="logprobs=-1"):
        SamplingFeatures(logprobs=-1)
    with pytest.raises(ValueError, match="logprobs_mode='cooked'"):
        SamplingFeatures(logprobs_mode="cooked")
    assert len({SamplingFeatures(), SamplingFeatures(), RANDOM}) == 2


def test_features_and_admission_do_not_import_jax() -> None:
    code = (
        "import sys; from jengine.sampling import SamplingFeatures, pack_admission, seed_words; "
        "assert 'jax' not in sys.modules; import jengine.sampling as s; "
        "assert all(hasattr(s, name) for name in s.__all__)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_donated_state_is_updated_in_place() -> None:
    rows, vocab = 4, 4096
    state = empty_row_state(rows, vocab, 64)
    inputs = make_inputs(range(rows), [1] * rows, adjusted=1)
    step = jax.jit(jit_sample, static_argnames=("features",), donate_argnums=1)
    features = SamplingFeatures(adjust=True)
    logits = random_logits(rows, vocab)
    compiled = step.lower(logits, state, inputs, features=features, key_data=KEY).compile()
    held = sum(leaf.nbytes for leaf in state)
    assert compiled.memory_analysis().alias_size_in_bytes >= held
