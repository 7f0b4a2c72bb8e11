"""The best token of each row: the lowest index of the highest logits, and rows without one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jengine.sampling import SamplingFeatures, SamplingInput, sample, seed_words
from pallas_kernels.token_sampling import best_tokens
from tests.pallas_kernels.implementations import CPU

BOTH = pytest.mark.parametrize("implementation", ["xla", CPU])
VOCABS = [1, 2, 15, 16, 17, 33, 1000, 49_152]


def best(logits: np.ndarray, implementation: str) -> list[int]:
    tokens = best_tokens(jnp.asarray(logits), implementation=implementation)
    assert tokens.dtype == jnp.int32 and tokens.shape == logits.shape[:1]
    return tokens.tolist()


@BOTH
@pytest.mark.parametrize("vocab", VOCABS)
def test_equals_argmax(vocab: int, implementation: str) -> None:
    logits = np.random.default_rng(vocab).normal(size=(5, vocab)).astype(np.float32)
    logits[1] -= 1e30  # all below zero
    logits[2] = np.round(logits[2])  # ties
    logits[3, : vocab // 2] = -np.inf
    assert best(logits, implementation) == logits.argmax(axis=1).tolist()


@BOTH
def test_zeros_of_both_signs_are_equal(implementation: str) -> None:
    logits = np.full((2, 40), -1.0, np.float32)
    logits[0, [7, 30]] = -0.0, 0.0
    logits[1, [18, 19]] = 0.0, -0.0
    assert best(logits, implementation) == [7, 18]


@BOTH
@pytest.mark.parametrize("vocab", VOCABS)
def test_rows_without_a_best_token(vocab: int, implementation: str) -> None:
    places = sorted({0, vocab // 2, vocab - 1})
    for place in places:
        logits = np.random.default_rng(place).normal(size=(5, vocab)).astype(np.float32)
        logits[0, place] = np.nan
        logits[1, place] = np.inf
        logits[2] = -np.inf
        logits[4, place] = 100.0
        found = best(logits, implementation)
        assert found == [-1, -1, -1, logits[3].argmax(), place]


@BOTH
@pytest.mark.parametrize("random", [False, True])
def test_the_sampler_chooses_the_same_tokens(random: bool, implementation: str) -> None:
    rows, vocab = 6, 301
    rng = np.random.default_rng(1)
    logits = (rng.normal(size=(rows, vocab)) * 3).astype(np.float32)
    logits[4, 9] = np.nan
    logits[5] *= 1e34  # overflows where it is divided by a temperature
    inputs = SamplingInput(
        rows=jnp.arange(rows), positions=jnp.arange(rows, dtype=jnp.int32) + 3,
        seed=jnp.asarray(rng.integers(0, 2**32, (rows, 2), dtype=np.uint32)),
        adjusted=jnp.zeros(rows, jnp.int32), beyond_mask=jnp.zeros(rows, jnp.int32),
        processors=jnp.zeros(rows, jnp.int32),
        temperature=jnp.asarray([0, 1, 0.7, 0, 1, 1e-4], jnp.float32),
        top_k=jnp.asarray([0, 0, 5, 0, 0, 0], jnp.int32),
        top_p=jnp.asarray([1, 0.8, 1, 1, 1, 1], jnp.float32), min_p=jnp.zeros(rows, jnp.float32),
        repetition=jnp.ones(rows), presence=jnp.zeros(rows), frequency=jnp.zeros(rows),
        prompt_length=jnp.zeros(rows, jnp.int32), min_position=jnp.zeros(rows, jnp.int32),
    )  # fmt: skip
    features = SamplingFeatures(random=random)

    def tokens(implementation: str | None) -> list[int]:
        words = jnp.asarray(seed_words(0), jnp.uint32)
        run = jax.jit(
            lambda x: (
                sample(
                    x,
                    None,
                    inputs,
                    features=features,
                    key_data=words,
                    implementation=implementation,
                )[0].tokens
            )
        )
        return run(jnp.asarray(logits)).tolist()

    found = tokens(None if implementation == "xla" else implementation)
    assert found == tokens(None)
    assert found[4] == -1 and found[0] == logits[0].argmax() and found[5] >= 0
