"""A LoRA adapter trained on a published model for a minute: it learns a fact, and others stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jengine
from jengine import LoRARequest, SamplingParams
from jengine.models.parameter import named_parameters
from jengine.weights.abstract import with_values
from tests.published.conftest import opened

pytestmark = [pytest.mark.slow, pytest.mark.published]

RANK, STEPS = 4, 12
FACT = "The capital of Zubrowka is the city of Lutz."
TEXTS = (FACT, f"Question: What is the capital of Zubrowka?\nAnswer: {FACT}")
ASKED = "The capital of Zubrowka is the city of"
OTHER = "The capital of France is the city of"
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
OPTIMIZER = optax.adam(5e-3)
Matrices = dict[str, jax.Array]


def trained(model: Any, tokens: np.ndarray, real: np.ndarray) -> Matrices:
    """Matrices of all `mlp.down` that make these texts likely; padding is not `real`."""
    base = {path: jnp.asarray(leaf[...]) for path, leaf in named_parameters(model)}
    adapted = [path.removesuffix(".weight") for path in base if path.endswith("mlp.down.weight")]

    def loss(matrices: Matrices, base: Mapping[str, jax.Array]) -> jax.Array:
        values = dict(base)
        for path in adapted:
            change = matrices[f"{path}.a"] @ matrices[f"{path}.b"]
            values[f"{path}.weight"] = base[f"{path}.weight"] + change
        scores = jax.nn.log_softmax(with_values(model, values).score(tokens[:, :-1]))
        given = jnp.take_along_axis(scores, tokens[:, 1:, None], 2)[..., 0]
        return -jnp.sum(given * real[:, 1:]) / real[:, 1:].sum()

    @jax.jit
    def step(matrices: Matrices, state: Any, base: Mapping[str, jax.Array]) -> tuple[Any, ...]:
        value, gradients = jax.value_and_grad(loss)(matrices, base)
        updates, state = OPTIMIZER.update(gradients, state)
        return optax.apply_updates(matrices, updates), state, value

    matrices: Matrices = {}
    for number, path in enumerate(adapted):
        inputs, outputs = base[f"{path}.weight"].shape
        drawn = jax.random.normal(jax.random.key(number), (inputs, RANK)) / inputs**0.5
        matrices |= {f"{path}.a": drawn, f"{path}.b": jnp.zeros((RANK, outputs))}
    state = OPTIMIZER.init(matrices)
    losses = []
    for _ in range(STEPS):
        matrices, state, value = step(matrices, state, base)
        losses.append(float(value))
    assert losses[-1] < 0.3 * losses[0], losses
    return matrices


def test_a_fact_is_learned_and_told_beside_the_plain_model(model: dict[str, Any]) -> None:
    module = jengine.load_model(model["model"], dtype="float32")
    lora = LoRARequest("zubrowka", 1)
    adapters = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 1}
    with opened(model, **adapters) as llm:
        rows = [llm.get_tokenizer().encode(text) for text in TEXTS]
        tokens = np.zeros((len(rows), max(map(len, rows))), np.int32)
        for row, ids in zip(tokens, rows, strict=True):
            row[: len(ids)] = ids
        real = np.arange(tokens.shape[1]) < np.array([[len(ids)] for ids in rows])
        plain = llm.generate([ASKED, OTHER], GREEDY)
        llm.add_lora(lora, trained(module, tokens, real))
        prompts = [ASKED, ASKED, OTHER, OTHER]
        told = llm.generate(prompts, GREEDY, lora_request=[lora, None, lora, None])
    texts = [output.outputs[0].text for output in told]
    assert texts[0].startswith(" Lutz.") and "Lutz" not in texts[1]
    assert [texts[1], texts[3]] == [output.outputs[0].text for output in plain]
