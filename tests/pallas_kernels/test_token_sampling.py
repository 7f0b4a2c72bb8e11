"""Token sampling equals sorting, and the engine's own sampler, token for token."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels
from jengine.sampling import SamplingFeatures, SamplingInput, sample, seed_words
from jengine.sampling.row_operations import gumbel, row_keys
from jengine.sampling_params import GREEDY_BELOW as HOSTS
from pallas_kernels.token_sampling import sample_tokens
from pallas_kernels.token_sampling.xla import GREEDY_BELOW
from tests.marks import slow
from tests.pallas_kernels.implementations import CPU, IMPLEMENTATIONS, SLOW_TRITON, TRITON

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
KINDS = {"temperature": np.float32, "top_k": np.int32, "top_p": np.float32, "min_p": np.float32}
engine_sample = jax.jit(sample, static_argnames="features")


def settings(rows: int, **given: Any) -> dict[str, np.ndarray]:
    assert set(given) <= set(OFF)
    return {
        name: np.broadcast_to(np.asarray(given.get(name, off), KINDS[name]), (rows,)).copy()
        for name, off in OFF.items()
    }


def mixed_settings(rows: int, seed: int) -> dict[str, np.ndarray]:
    """Every filter on and off, alone and with the others, and greedy rows between."""
    rng = np.random.default_rng(seed)
    return settings(
        rows,
        temperature=rng.choice([0.0, 0.3, 1.0, 1.7], rows, p=[0.1, 0.2, 0.5, 0.2]),
        top_k=rng.choice([0, 0, 1, 2, 7, 50, 10_000_000], rows),
        top_p=rng.choice([1.0, 1.0, 0.0, 0.1, 0.6, 0.95, 0.999], rows),
        min_p=rng.choice([0.0, 0.0, 0.001, 0.1, 0.9, 1.0], rows),
    )


def random_logits(rows: int, vocab: int, seed: int = 0, spread: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(rows, vocab)) * spread).astype(np.float32)


def noise_keys(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, size=(rows, 2), dtype=np.uint32)


def run(
    logits: np.ndarray, keys: np.ndarray, chosen: dict[str, np.ndarray], implementation: str
) -> np.ndarray:
    arrays = {name: jnp.asarray(value) for name, value in chosen.items()}
    tokens = sample_tokens(
        jnp.asarray(logits), jnp.asarray(keys), **arrays, implementation=implementation
    )
    assert tokens.dtype == jnp.int32
    return np.asarray(tokens)


def each_row(chosen: dict[str, np.ndarray]) -> Iterator[dict[str, Any]]:
    for values in zip(*chosen.values(), strict=True):
        yield dict(zip(chosen, values, strict=True))


def kept_by_sorting(scaled: np.ndarray, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """bool[V] by a stable sort, with the kernel's own arithmetic: weights in multiples of 2^-35."""
    weights = np.exp(scaled - scaled.max())
    left = (weights >= min(min_p, np.float32(1))) & (scaled > -np.inf)
    order = [index for index in np.argsort(-scaled, kind="stable") if left[index]]
    if top_k > 0:
        order = order[:top_k]
    if top_p < 1:
        whole = (weights[order] * np.float32(2**35) + np.float32(0.5)).astype(np.int64)
        share = max(int(np.ceil(np.float64(top_p) * whole.sum())), 1)
        order = order[: int(np.searchsorted(np.cumsum(whole), share)) + 1]
    kept = np.zeros(scaled.size, bool)
    kept[order] = True
    return kept


def kept_by_kernel(logits: np.ndarray, chosen: dict[str, np.ndarray]) -> np.ndarray:
    """bool[S, V]: what the cuts that the kernels find, and min-p, leave."""
    from pallas_kernels.token_sampling.triton import best_of_parts_of, cuts, divide

    arrays = {name: jnp.asarray(value) for name, value in chosen.items()}
    parts = divide(*logits.shape, 1024)
    best = best_of_parts_of(jnp.asarray(logits), parts)
    threshold, last = map(np.asarray, cuts(jnp.asarray(logits), best, parts, **arrays))
    kept = np.zeros(logits.shape, bool)
    for row, one in enumerate(each_row(chosen)):
        scaled = logits[row] / one["temperature"]
        bits = np.where(scaled == 0, np.float32(0), scaled).view(np.int32)
        key = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
        kept[row] = key > threshold[row]
        kept[row] |= (key == threshold[row]) & (np.arange(scaled.size) <= last[row])
        kept[row] &= np.exp(scaled - scaled.max()) >= min(one["min_p"], np.float32(1))
        kept[row] &= scaled > -np.inf
    return kept


def assert_cuts_equal_sorting(logits: np.ndarray, chosen: dict[str, np.ndarray]) -> None:
    found = kept_by_kernel(logits, chosen)
    for row, one in enumerate(each_row(chosen)):
        temperature = one.pop("temperature")
        expected = kept_by_sorting(logits[row] / temperature, **one)
        assert expected.any()
        np.testing.assert_array_equal(
            np.flatnonzero(found[row]), np.flatnonzero(expected), err_msg=f"{row}: {one}"
        )


def random_only(chosen: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {**chosen, "temperature": np.maximum(chosen["temperature"], np.float32(0.5))}


def near_ties(logits: np.ndarray, keys: np.ndarray, chosen: dict[str, np.ndarray]) -> np.ndarray:
    """Rows in which the last bits of logarithms, or of sums, may decide."""
    noise = np.asarray(gumbel(jax.random.wrap_key_data(keys), logits.shape[1]), np.float64)
    near = np.zeros(len(logits), bool)
    for row, one in enumerate(each_row(chosen)):
        temperature = one.pop("temperature")
        if temperature < 1e-5:
            continue
        scaled = logits[row] / temperature
        kept = kept_by_sorting(scaled, **one)
        scores = np.sort(np.where(kept, scaled + noise[row], -np.inf))
        near[row] = scores[-1] - scores[-2] < 1e-5
        slightly = one["top_p"] * np.float32(2e-6)
        for top_p in (one["top_p"] - slightly, one["top_p"] + slightly):
            if one["top_p"] < 1:
                near[row] |= (kept_by_sorting(scaled, **{**one, "top_p": top_p}) != kept).any()
    return near


def engine_tokens(
    logits: np.ndarray, seeds: np.ndarray, positions: np.ndarray, chosen: dict[str, np.ndarray]
) -> np.ndarray:
    rows = len(logits)
    off = np.zeros(rows, np.float32)
    count = np.zeros(rows, np.int32)
    inputs = SamplingInput(
        rows=np.arange(rows, dtype=np.int32), positions=positions, seed=seeds, adjusted=count,
        beyond_mask=count, processors=count, repetition=off + 1, presence=off, frequency=off,
        prompt_length=count,
        min_position=count, **chosen,
    )  # fmt: skip
    features = SamplingFeatures(random=True)
    output, _ = engine_sample(
        jnp.asarray(logits), None, inputs, features=features, key_data=seed_words(5)
    )
    return np.asarray(output.tokens)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("rows", "vocab"), [(24, 257), *slow((7, 1), (12, 3001), (1, 2))])
def test_equals_the_engine_sampler(rows: int, vocab: int, implementation: str) -> None:
    logits, chosen = random_logits(rows, vocab), mixed_settings(rows, seed=vocab)
    seeds, positions = noise_keys(rows, seed=1), np.arange(rows, dtype=np.int32)
    keys = jax.random.key_data(row_keys(seed_words(5), jnp.asarray(seeds), jnp.asarray(positions)))
    tokens = run(logits, np.asarray(keys), chosen, implementation)
    expected = engine_tokens(logits, seeds, positions, chosen)
    clear = ~near_ties(logits, np.asarray(keys), chosen) if vocab > 1 else np.ones(rows, bool)
    assert clear.sum() >= rows * 0.85
    np.testing.assert_array_equal(tokens[clear], expected[clear])


@pytest.mark.slow
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_many_draws_equal_the_engine_sampler(implementation: str) -> None:
    rows, vocab = (600 if implementation == "xla" else 16), 60
    logits = np.repeat(random_logits(1, vocab, seed=4, spread=1.0), rows, axis=0)
    chosen = settings(rows, top_k=30, top_p=0.9, min_p=0.02)
    seeds, positions = noise_keys(rows, seed=2), np.arange(rows, dtype=np.int32)
    keys = jax.random.key_data(row_keys(seed_words(5), jnp.asarray(seeds), jnp.asarray(positions)))
    tokens = run(logits, np.asarray(keys), chosen, implementation)
    assert len(set(tokens.tolist())) > 5
    clear = ~near_ties(logits, np.asarray(keys), chosen)
    assert clear.sum() > rows - 3
    expected = engine_tokens(logits, seeds, positions, chosen)
    np.testing.assert_array_equal(tokens[clear], expected[clear])


@pytest.mark.parametrize("implementation", [TRITON])
@pytest.mark.parametrize("vocab", [63, *slow(3001)])
@pytest.mark.parametrize(
    "kind", ["spread", "ties", "masked", *slow("narrow", "two values", "lowest")]
)
def test_cuts_equal_sorting_exactly(kind: str, vocab: int, implementation: str) -> None:
    rows = 16 if vocab > 1000 else 8
    logits = random_logits(rows, vocab, seed=vocab, spread=0.01 if kind == "narrow" else 4.0)
    if kind == "ties":
        logits = np.round(logits)
    if kind == "two values":
        logits = (logits > 0).astype(np.float32) * np.float32(-0.0)
        logits[:, ::3] = 1.5
    if kind in ("masked", "lowest"):
        hidden = np.random.default_rng(1).random(logits.shape) < 0.9
        hidden[:, 0] = False
        logits[hidden] = -np.inf if kind == "masked" else np.finfo(np.float32).min
    chosen = random_only(mixed_settings(rows, seed=vocab + 1))
    if kind == "lowest":
        chosen["temperature"][:] = 1  # the lowest number stays what it is
        chosen["top_k"][: rows // 2] = vocab // 2
    assert_cuts_equal_sorting(logits, chosen)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", [TRITON])
def test_how_rows_are_divided_changes_nothing(
    implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pallas_kernels.token_sampling import triton as ours

    logits, keys = random_logits(3, 2100), noise_keys(3)
    chosen = settings(3, temperature=[0, 1, 1], top_p=[1, 1, 0.7])
    arrays = [jnp.asarray(array) for array in (logits, keys, *chosen.values())]
    answers = []
    for parts in (ours.Parts(1, 3072), ours.Parts(2, 2048), ours.Parts(3, 1024)):
        monkeypatch.setattr(ours, "divide", lambda *_, parts=parts: parts)
        answers.append(ours.sample_tokens_triton(*arrays).tolist())
    assert answers == [answers[0]] * 3
    assert answers[0] == run(logits, keys, chosen, "xla").tolist()


def test_rows_are_divided_whole() -> None:
    ours = pytest.importorskip("pallas_kernels.token_sampling.triton", reason="needs triton")
    for rows in (1, 3, 64, 1000):
        for vocab in (1, 1024, 1025, 32_000, 151_936):
            parts = ours.divide(rows, vocab, 1024)
            assert parts.size % 1024 == 0
            assert (parts.count - 1) * parts.size < vocab <= parts.count * parts.size
    assert ours.divide(1, 151_936, 1024).count > 30
    assert ours.divide(1000, 151_936, 1024).count == 1


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", *slow("float16")])
def test_greedy_takes_the_lowest_index_of_equal_logits(dtype: str, implementation: str) -> None:
    logits = np.zeros((4, 2050), np.float32)
    logits[0, [5, 1999]] = 2
    logits[1, [2049]] = 1
    logits[2] = -0.0
    logits[3, 7:] = -1
    logits[3, 0] = -np.inf
    chosen = settings(4, temperature=0, top_k=3, top_p=0.1, min_p=0.5)
    tokens = run(jnp.asarray(logits, dtype), noise_keys(4), chosen, implementation)
    assert tokens.tolist() == [5, 2049, 0, 1]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_that_cannot_be_used_answer_minus_one_alone(
    temperature: float, implementation: str
) -> None:
    logits = random_logits(6, 1500)
    logits[1, 1400] = np.nan
    logits[2, 3] = np.inf
    logits[3] = -np.inf
    logits[4] = np.nan
    logits[5, 1:] = -np.inf
    chosen = settings(6, temperature=temperature, top_k=20, top_p=0.5, min_p=0.01)
    tokens = run(logits, noise_keys(6), chosen, implementation)
    assert tokens[1:].tolist() == [-1, -1, -1, -1, 0]
    assert tokens[0] == run(logits[:1], noise_keys(6)[:1], settings(
        1, temperature=temperature, top_k=20, top_p=0.5, min_p=0.01), implementation)  # fmt: skip
    assert tokens[0] >= 0


@pytest.mark.parametrize("implementation", ["xla", SLOW_TRITON, CPU])
def test_ties_at_a_cut_stay_by_lowest_index(implementation: str) -> None:
    rows, vocab = 10, 1300
    logits = np.full((rows, vocab), -30, np.float32)
    logits[:, 100::10] = 1.0
    seen = {}
    for name, value in {"top_k": 3, "top_p": 2.5 / 120}.items():
        chosen = settings(rows, **{name: value})
        seen[name] = set(run(logits, noise_keys(rows), chosen, implementation).tolist())
    assert seen == {"top_k": {100, 110, 120}, "top_p": {100, 110, 120}}


def test_the_two_implementations_have_the_same_noise() -> None:
    from pallas_kernels.token_sampling import xla

    keys = noise_keys(3)
    ours = xla.gumbel(jnp.asarray(keys), jnp.zeros((3, 501)))
    np.testing.assert_array_equal(ours, gumbel(jax.random.wrap_key_data(keys), 501))


@pytest.mark.slow
@pytest.mark.parametrize("implementation", [TRITON])
@pytest.mark.parametrize("vocab", [128_256, 151_669])
def test_large_vocabularies(vocab: int, implementation: str) -> None:
    rows = 8
    logits = random_logits(rows, vocab, seed=vocab)
    logits[1] = np.round(logits[1])
    chosen = mixed_settings(rows, seed=vocab)
    chosen["temperature"][0], chosen["top_k"][1], chosen["top_p"][2] = 0, 50, 0.95
    keys = noise_keys(rows)
    assert_cuts_equal_sorting(logits, random_only(chosen))
    clear = ~near_ties(logits, keys, chosen)
    assert clear.sum() >= rows - 2
    tokens = run(logits, keys, chosen, implementation)
    np.testing.assert_array_equal(tokens[clear], run(logits, keys, chosen, "xla")[clear])


def test_an_unknown_implementation_is_named() -> None:
    with pytest.raises(ValueError, match=r"sample_tokens.*'cuda'.*Available: .*xla"):
        run(random_logits(1, 8), noise_keys(1), settings(1), "cuda")


def test_kernels_agree_which_rows_are_greedy() -> None:
    folder = Path(pallas_kernels.__file__).parent
    for file in ("cpu/source/draw.h", "token_sampling/kernels/order.py"):
        found = re.search(
            r"GREEDY_BELOW = (?:tl\.constexpr\()?([\d.e-]+)", (folder / file).read_text()
        )
        assert found is not None and float(found[1]) == GREEDY_BELOW == HOSTS, file
