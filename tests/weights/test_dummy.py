"""Random weights have the declared shapes, means and deviations, and follow the seed."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jengine.config import ModelConfig
from jengine.models import registry
from jengine.models.parameter import named_parameters
from jengine.weights.abstract import abstract_model
from jengine.weights.dummy import NOISE_LENGTH, dummy_model
from tests.models.tiny_models import tiny_settings


def tiny_config() -> ModelConfig:
    settings = tiny_settings("qwen3", attention_bias=True, architectures=["Qwen3ForCausalLM"])
    return registry.model_config(settings)


def test_dummy_weights_follow_the_declarations() -> None:
    config = tiny_config()
    declared = dict(named_parameters(abstract_model(config)))
    for path, parameter in named_parameters(dummy_model(config, "bfloat16")):
        init = parameter.get_metadata()["init"]
        values = np.asarray(parameter.get_value(), np.float32)
        assert parameter.dtype == jnp.bfloat16
        assert values.shape == declared[path].shape
        if init.stddev == 0.0:
            assert (values == init.mean).all()
        else:
            assert abs(values.std() - init.stddev) < 0.1 * init.stddev
            assert abs(values.mean()) < 0.1 * init.stddev


def test_dummy_weights_follow_the_seed() -> None:
    config = tiny_config()
    first, same, other = (dummy_model(config, seed=seed) for seed in (1, 1, 2))
    assert (first.embed.weight[...] == same.embed.weight[...]).all()
    assert (first.embed.weight[...] != other.embed.weight[...]).any()
    mlp = [layer.mlp.down.weight[...] for layer in first.layers]
    assert (mlp[0] != mlp[1]).any()


def test_large_parameters_are_filled_to_the_end() -> None:
    config = dataclasses.replace(tiny_config(), vocab_size=NOISE_LENGTH // 32 * 2 + 5)
    embed = np.asarray(dummy_model(config).embed.weight.get_value()).reshape(-1)
    assert embed.size > 2 * NOISE_LENGTH
    np.testing.assert_array_equal(embed[NOISE_LENGTH : NOISE_LENGTH + 9], embed[:9])
    assert np.isfinite(embed).all()
    assert abs(embed[-1000:].std() - config.initializer_range) < 0.05


def test_dummy_models_score() -> None:
    model = dummy_model(tiny_config())
    score = jax.jit(lambda tokens: model.score(tokens))
    assert jnp.isfinite(score(jnp.arange(5)[None])).all()
