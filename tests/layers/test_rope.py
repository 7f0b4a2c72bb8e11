"""Rotary positions: frequencies against transformers, rotations against complex numbers."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jengine.config import RopeConfig
from jengine.layers.rope import inverse_frequencies, rotate, rotation

HEAD_DIM = 32
LONGEST = 4096
YARN = {"factor": 32.0, "original_max_position_embeddings": 4096}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("config", "scaling"),
    [
        (RopeConfig(10000.0, "linear", 4.0), {"rope_type": "linear", "factor": 4.0}),
        (
            RopeConfig(500000.0, "llama3", 8.0, 1.0, 4.0, 8192),
            {"rope_type": "llama3", "original_max_position_embeddings": 8192, **LLAMA3},
        ),
        (
            RopeConfig(
                150000.0,
                "yarn",
                32.0,
                original_max_position=4096,
                truncate=False,
                attention_factor=1.0,
            ),
            {"rope_type": "yarn", "truncate": False, "attention_factor": 1.0, **YARN},
        ),
        (
            RopeConfig(
                10000.0, "yarn", 32.0, original_max_position=4096, beta_fast=16.0, beta_slow=2.0
            ),
            {
                "rope_type": "yarn",
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                **YARN,
            },
        ),
    ],
)
def test_scaled_frequencies_are_those_of_transformers(
    config: RopeConfig, scaling: dict[str, object]
) -> None:
    pytest.importorskip("torch")
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    theirs = LlamaConfig(
        hidden_size=4 * HEAD_DIM, num_attention_heads=4,
        rope_parameters={"rope_theta": config.theta, **scaling},
    )  # fmt: skip
    expected, factor = ROPE_INIT_FUNCTIONS[str(scaling["rope_type"])](theirs, "cpu")
    assert factor == 1.0
    np.testing.assert_allclose(
        inverse_frequencies(config, HEAD_DIM, LONGEST), expected.numpy(), rtol=2e-7, atol=0
    )


@pytest.mark.parametrize("longest", [64, 65])
def test_long_sequences_have_wavelengths_of_their_own(longest: int) -> None:
    torch = pytest.importorskip("torch")
    from transformers import Phi3Config
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    pairs = HEAD_DIM // 2
    short, long = (tuple(1.0 + step * pair for pair in range(pairs)) for step in (0.1, 0.7))
    scaling = {
        "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": list(short),
        "long_factor": list(long), "original_max_position_embeddings": 64,
    }  # fmt: skip
    theirs = Phi3Config(
        hidden_size=4 * HEAD_DIM, num_attention_heads=4, max_position_embeddings=256,
        original_max_position_embeddings=64, rope_parameters=scaling, pad_token_id=None,
    )  # fmt: skip
    expected, factor = ROPE_INIT_FUNCTIONS["longrope"](theirs, "cpu", seq_len=longest)
    assert expected.dtype == torch.float32
    config = RopeConfig(
        kind="longrope", original_max_position=64, short_factors=short, long_factors=long,
        attention_factor=factor,
    )  # fmt: skip
    np.testing.assert_allclose(
        inverse_frequencies(config, HEAD_DIM, longest), expected.numpy(), rtol=2e-7, atol=0
    )


@pytest.mark.parametrize("longest", [64, 65, 250])
def test_the_base_is_stretched_for_the_longest_sequence(longest: int) -> None:
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    theirs = LlamaConfig(
        hidden_size=4 * HEAD_DIM, num_attention_heads=4, max_position_embeddings=64,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    )  # fmt: skip
    expected, factor = ROPE_INIT_FUNCTIONS["dynamic"](theirs, "cpu", seq_len=longest)
    assert factor == 1.0
    assert expected.dtype == torch.float32
    config = RopeConfig(kind="dynamic", factor=4.0, original_max_position=64)
    np.testing.assert_allclose(
        inverse_frequencies(config, HEAD_DIM, longest), expected.numpy(), rtol=1e-6, atol=0
    )


def test_a_part_of_a_head_keeps_still() -> None:
    config = RopeConfig(10000.0, attention_factor=1.5, rotated=8)
    found = inverse_frequencies(config, HEAD_DIM, LONGEST)
    np.testing.assert_array_equal(found[:4], inverse_frequencies(RopeConfig(10000.0), 8, LONGEST))
    assert not found[4:].any()
    cos, sin = rotation(jnp.asarray([3]), config, HEAD_DIM, LONGEST)
    np.testing.assert_allclose(cos[0, 4:], 1.0)
    np.testing.assert_allclose((cos**2 + sin**2)[0, :4], 1.5**2, rtol=1e-6)


def test_unscaled_frequencies_are_powers_of_the_base() -> None:
    found = inverse_frequencies(RopeConfig(10000.0), HEAD_DIM, LONGEST)
    expected = 10000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=3e-7)


def test_a_head_is_rotated_as_complex_numbers() -> None:
    positions = np.array([0, 1, 7, 1000])
    x = np.random.default_rng(0).normal(size=(4, 2, HEAD_DIM)).astype(np.float32)
    config = RopeConfig(10000.0)
    found = rotate(jnp.asarray(x), *rotation(jnp.asarray(positions), config, HEAD_DIM, LONGEST))
    angles = positions[:, None] * inverse_frequencies(config, HEAD_DIM, LONGEST)[None]
    half = HEAD_DIM // 2
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)[:, None, :]
    expected = np.concatenate([turned.real, turned.imag], axis=-1)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(found[0], x[0])


def test_scores_depend_on_the_distance_alone() -> None:
    rng = np.random.default_rng(1)
    q, k = (rng.normal(size=(1, 1, HEAD_DIM)).astype(np.float32) for _ in range(2))

    def score(query: int, key: int) -> float:
        turned = [
            rotate(jnp.asarray(x), *rotation(jnp.asarray([at]), RopeConfig(), HEAD_DIM, LONGEST))
            for x, at in ((q, query), (k, key))
        ]
        return float(jnp.sum(turned[0] * turned[1]))

    assert score(5, 2) == pytest.approx(score(105, 102), abs=1e-4)
    assert score(5, 2) != pytest.approx(score(5, 3), abs=1e-3)
