"""The bench of what rounded weights cost: distances, perplexities and sizes of each scheme."""

from __future__ import annotations

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jengine.bench.rounding import PIECE, compared, main, with_noise
from jengine.errors import ConfigError


def test_divergence_and_loss_are_those_of_the_definitions() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 3, 7))
    truth, found = np.log(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True))
    ids = np.array([1, 4, 6])
    divergence, loss = compared(jnp.asarray(truth), jnp.asarray(found), jnp.asarray(ids))
    np.testing.assert_allclose(
        divergence, (np.exp(truth) * (truth - found)).sum(-1), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(loss, [-found[0, 4], -found[1, 6]], rtol=1e-5)


def test_noise_moves_the_matrices_of_layers_alone() -> None:
    names = ("embed.weight", "layers.0.norm.weight", "layers.0.mlp.down.weight")
    given = {name: jnp.full((40,), 1.0, jnp.bfloat16) for name in names}
    given["layers.0.mlp.down.weight"] = jnp.arange(4000, dtype=jnp.bfloat16).reshape(40, 100)
    moved = with_noise(given, 0.1)
    for name in names[:2]:
        np.testing.assert_array_equal(moved[name], given[name])
    plain, other = (np.asarray(one[names[2]], np.float32) for one in (given, moved))
    assert 0.09 < (other - plain).std() / plain.std() < 0.11
    assert moved[names[2]].dtype == jnp.bfloat16


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="'int3': expected some of bfloat16, int8"):
        main(["demo", "--schemes", "int3"])


@pytest.mark.slow
def test_schemes_are_measured_against_plain_weights(tmp_path: Path) -> None:
    file = tmp_path / "rounding.json"
    words = ["demo", "--tokens", str(PIECE + 1), "--schemes", "int4", "cache int8"]
    assert main([*words, "--output-json", str(file)]) == 0
    result = json.loads(file.read_text())
    assert (result["bench"], result["tokens"]) == ("rounding", PIECE)
    plain, int4, cache = result["schemes"].values()
    assert plain["kl"] == 0 < cache["kl"] < int4["kl"]
    assert int4["weight_bytes"] < cache["weight_bytes"] == plain["weight_bytes"]
    assert cache["cache_bytes_per_token"] < plain["cache_bytes_per_token"]
