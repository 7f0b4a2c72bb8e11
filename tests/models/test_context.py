"""StepContext carries caches through a model, and cannot leak arrays out of a trace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jengine import LLM, SamplingParams
from jengine.config import AttentionConfig, LayerConfig, MlpConfig, ModelConfig, RopeConfig
from jengine.layers.attention import AttentionInputs
from jengine.models.context import StepContext, whole_sequences
from jengine.models.decoder import Decoder
from jengine.weights.dummy import dummy_model
from tests.models.plain_logits import plain_logits

FULL = LayerConfig(AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=8), MlpConfig(48))


def config_of(*mixers: dict[str, Any]) -> ModelConfig:
    layers = tuple(replace(FULL, mixer=replace(FULL.mixer, **mixer)) for mixer in mixers)
    return ModelConfig(
        "LlamaForCausalLM", 97, 32, max_position=256, layers=layers, initializer_range=0.3
    )


def counting(caches: Any, layer: int, inputs: AttentionInputs) -> tuple[jax.Array, Any]:
    """A mixer that keeps how often each layer has written."""
    return inputs.heads()[0], caches.at[layer].add(1)


def test_caches_pass_from_layer_to_layer() -> None:
    model = dummy_model(config_of({}, {}, {}))

    @jax.jit
    def run(tokens: jax.Array) -> jax.Array:
        rows = jnp.zeros_like(tokens)
        context = StepContext(jnp.arange(tokens.size), rows, counting, 5, jnp.zeros(3, jnp.int32))
        model(tokens, context)
        return context.caches

    assert run(jnp.arange(5)).tolist() == [1, 1, 1]


def test_a_cache_written_inside_another_trace_is_refused() -> None:
    """It would hold a tracer of the scan's body, which fails far from its cause."""
    model = dummy_model(config_of({}))

    @jax.jit
    def run(tokens: jax.Array) -> jax.Array:
        context = StepContext(jnp.arange(5), tokens, counting, 5, jnp.zeros(1, jnp.int32))
        x = model.embedded(tokens, context.positions)
        return jax.lax.scan(lambda x, _: (model.layers[0](x, context), None), x, None, 2)[0]

    with pytest.raises(RuntimeError, match="layer 0 wrote to the KV cache inside"):
        run(jnp.arange(5))


@pytest.mark.slow
def test_layers_may_be_recomputed_in_training() -> None:
    """Without a cache nothing is kept, so a layer may run in a trace of its own."""
    model = dummy_model(config_of({}, {}))
    graph, parameters = nnx.split(model)
    tokens = jnp.arange(12).reshape(2, 6)

    def loss(parameters: nnx.State, remat: bool) -> jax.Array:
        model = nnx.merge(graph, parameters)
        context = whole_sequences(tokens.shape)
        x = model.embedded(tokens, context.positions)
        for layer in model.layers:
            run = lambda x, layer=layer: layer(x, context)  # noqa: E731
            x = jax.checkpoint(run)(x) if remat else run(x)
        return jnp.mean(jnp.square(model.logits(model.norm(x))))

    gradients = jax.jit(jax.grad(loss), static_argnums=1)
    plain, recomputed = gradients(parameters, False), gradients(parameters, True)
    for left, right in zip(jax.tree.leaves(plain), jax.tree.leaves(recomputed), strict=True):
        np.testing.assert_allclose(np.asarray(left), np.asarray(right), rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_every_layer_has_its_own_attention() -> None:
    """Windows, rotations, heads and scores differ between layers; the cache's answers agree."""
    config = config_of(
        {},
        {"rope": None, "scale": 0.2},
        {"window": 16, "rope": RopeConfig(theta=500.0), "soft_cap": 3.0},
        {"num_heads": 6, "num_kv_heads": 1, "head_dim": 16, "qk_norm": "head", "sinks": True},
        {"qk_norm": "whole", "sinks": True, "window": 16},
    )
    assert len(config.groups) == 3
    model = Decoder(config, rngs=nnx.Rngs(0))
    prompts = [np.random.default_rng(size).integers(0, 97, size).tolist() for size in (3, 40)]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    settings = {"skip_tokenizer_init": True, "max_num_seqs": 2, "enforce_eager": True}
    with LLM(model, max_model_len=64, **settings) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
    for prompt, output in zip(prompts, outputs, strict=True):
        made = list(output.outputs[0].token_ids)
        best = plain_logits(model, [*prompt, *made])[len(prompt) - 1 : -1].argmax(-1)
        assert made == best.tolist()
