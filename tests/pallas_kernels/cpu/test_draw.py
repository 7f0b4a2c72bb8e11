"""The CPU kernels' noise and draws: those of XLA, and with the same bits in any batch."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jengine.sampling import SamplingFeatures, sample, seed_words
from jengine.sampling.row_operations import XLA
from pallas_kernels.choice import cpu_problem
from pallas_kernels.cpu.sampling import gumbel_noise, noise_keys, sample_tokens_cpu
from tests.sampling.oracle import make_inputs

pytestmark = pytest.mark.skipif(bool(cpu_problem()), reason=str(cpu_problem()))
ROWS = 7


def words(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, size=(rows, 2), dtype=np.uint32)


def test_keys_are_those_of_jax() -> None:
    base, seeds = words(1)[0], words(ROWS, seed=1)
    positions = np.array([0, 1, 2, 1000, 2**31 - 1, -1, 7], np.int32)
    expected = jax.jit(XLA.row_keys)(base, seeds, positions)
    assert np.array_equal(jax.jit(noise_keys)(base, seeds, positions), expected)


@pytest.mark.parametrize("vocab", [1, 15, 16, 4099, pytest.param(1 << 22, marks=pytest.mark.slow)])
def test_noise_is_that_of_a_sampler_without_kernels(vocab: int) -> None:
    """A seed means the same tokens with and without the kernels, but for near ties."""
    keys = words(ROWS)
    noise = np.asarray(gumbel_noise(keys, vocab))
    expected = np.asarray(jax.jit(XLA.gumbel, static_argnums=1)(keys, vocab))
    np.testing.assert_allclose(noise, expected, rtol=5e-7, atol=5e-7)
    assert np.array_equal(gumbel_noise(keys[3:4], vocab)[0], noise[3])


@pytest.mark.slow
def test_a_row_is_drawn_alike_in_any_batch_and_whether_or_not_its_distribution_is_wanted() -> None:
    """Programs that show the filtered distribution draw outside the kernel."""
    vocab, draws = 301, 40
    logits = (np.random.default_rng(4).normal(size=(ROWS, vocab)) * 2).astype(np.float32)
    settings = {
        "temperature": [0, 1, 0.7, 1.5, 1e-4, 1, 3], "top_k": [0, 0, 40, 5, 0, 0, 300],
        "top_p": [1, 1, 0.9, 0.5, 1, 0.2, 1], "min_p": [0, 0, 0, 0.01, 0, 0, 0.05],
    }  # fmt: skip
    shown = SamplingFeatures(random=True, logprobs=1, logprobs_mode="processed_logprobs")
    for position in range(draws):
        inputs = make_inputs(range(ROWS), [position] * ROWS, seed=range(ROWS), **settings)
        drawn, _ = sample(
            logits, None, inputs, features=SamplingFeatures(random=True),
            key_data=seed_words(0), implementation="cpu",
        )  # fmt: skip
        also, _ = sample(
            logits, None, inputs, features=shown, key_data=seed_words(0), implementation="cpu"
        )
        assert np.array_equal(drawn.tokens, also.tokens)
        row = position % ROWS
        keys = noise_keys(seed_words(0), inputs.seed, inputs.positions)
        given = (logits, keys, inputs.temperature, inputs.top_k, inputs.top_p, inputs.min_p)
        one = [np.asarray(value)[row : row + 1] for value in given]
        assert sample_tokens_cpu(*one)[0] == drawn.tokens[row]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 20.0, 1e4, 1e30])
def test_tokens_without_noise_could_not_have_been_drawn(scale: float) -> None:
    """The kernel leaves out the noise of tokens far below the best one."""
    vocab = 997
    logits = (np.random.default_rng(5).normal(size=(64, vocab)) * scale).astype(np.float32)
    keys, ones = words(64, seed=6), np.ones(64, np.float32)
    off = np.zeros(64, np.int32)
    drawn = sample_tokens_cpu(logits, keys, ones, off, ones, ones * 0)
    assert np.array_equal(drawn, (logits + np.asarray(gumbel_noise(keys, vocab))).argmax(axis=1))


def test_sizes_and_types_are_checked() -> None:
    logits, keys = np.zeros((2, 9), np.float32), words(2)
    ones, ints = np.ones(2, np.float32), np.zeros(2, np.int32)
    with pytest.raises(Exception, match="two words for each row"):
        sample_tokens_cpu(logits, words(3), ones, ints, ones, ones)
    with pytest.raises(Exception, match="must be uint32"):
        sample_tokens_cpu(logits, keys.astype(np.float32), ones, ints, ones, ones)
    with pytest.raises(Exception, match="another size"):
        sample_tokens_cpu(logits, keys, np.ones(3, np.float32), ints, ones, ones)
    with pytest.raises(Exception, match="two words for each row"):
        noise_keys(words(1)[0], words(3), ints)
