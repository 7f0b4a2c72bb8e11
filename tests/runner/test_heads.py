"""Prompt log-probabilities: chunks in turn, for CUDA graphs, give what chunks in a loop give."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from jengine.runner.step.heads import SCORED_AT_ONCE_ON_GPUS, score_in_loop, score_in_turn
from jengine.sampling import score_tokens
from jengine.sampling.logprobs import Logprobs


@pytest.mark.parametrize("k", [0, 3])
def test_chunks_in_turn_and_in_a_loop_are_scored_alike(k: int) -> None:
    rng = np.random.default_rng(k)
    tokens, hidden, vocab = 2 * SCORED_AT_ONCE_ON_GPUS + 41, 16, 50
    states = jnp.asarray(rng.normal(size=(tokens, hidden)), jnp.float32)
    weights = jnp.asarray(rng.normal(size=(hidden, vocab)), jnp.float32)
    targets = rng.integers(0, vocab, tokens).astype(np.int32)
    # Padding, also where the next chunk's place follows from it.
    targets[[0, 5, SCORED_AT_ONCE_ON_GPUS, tokens - 1]] = -1

    biases = jnp.asarray(rng.normal(size=(7 + tokens, 1)), jnp.float32)

    def score(states: Array, targets: Array, places: Array) -> Logprobs:
        return score_tokens(states @ weights * biases[places], targets, k)

    given = score, states, jnp.asarray(targets), 7 + jnp.arange(tokens)
    in_turn = jax.jit(score_in_turn, static_argnums=0)(*given)
    in_loop = jax.jit(score_in_loop, static_argnums=0)(*given)
    assert in_turn.rank.shape == (tokens,)
    np.testing.assert_allclose(in_turn.values, in_loop.values, atol=1e-5)
    np.testing.assert_array_equal(in_turn.ids, in_loop.ids)
    np.testing.assert_array_equal(in_turn.rank, in_loop.rank)


def test_no_loop_is_left_for_graphs() -> None:
    def score(states: Array, targets: Array, _: Array) -> Logprobs:
        return score_tokens(states, targets, 1)

    numbers = jax.ShapeDtypeStruct((300,), jnp.int32)
    shapes = jax.ShapeDtypeStruct((300, 8), jnp.float32), numbers, numbers
    for function, loops in ((score_in_turn, 0), (score_in_loop, 1)):
        text = jax.jit(function, static_argnums=0).lower(score, *shapes).as_text()
        assert text.count("stablehlo.while") == loops
