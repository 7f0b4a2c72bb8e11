"""EAGLE and Medusa heads: they guess what their definitions say, and change no token."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jengine
from jengine import SamplingParams
from jengine.errors import CheckpointError, ConfigError
from jengine.models.context import whole_sequences
from jengine.models.eagle import read_eagle
from jengine.models.medusa import read_medusa
from jengine.weights.abstract import with_values
from jengine.weights.safetensors_file import write_file
from jengine.weights.safetensors_io import load_model, load_params
from tests.api.engines import is_idle, random_prompts, rebuilt, tiny_engine
from tests.api.test_draft_model import DRAFTS, PROMPTS, SIZES, drafted, drafting
from tests.api.test_speculation import params, same
from tests.models.tiny_models import write_tiny_native

READERS: dict[str, Callable[..., Any]] = {"eagle": read_eagle, "medusa": read_medusa}
OWN: dict[str, dict[str, Any]] = {
    "eagle": {
        "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "hidden_size": 32,
        "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
        "initializer_range": 0.3, **SIZES,
    },
    "medusa": {"medusa_num_heads": DRAFTS, "medusa_num_layers": 2, "medusa_fc_bias": True},
}  # fmt: skip
METHODS = list(READERS)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_native(tmp_path_factory.mktemp("target"), "llama", **SIZES)


def write_heads(folder: Path, method: str, target: Path, **changed: Any) -> Path:
    """Random heads for a model."""
    hf = {**OWN[method], **changed}
    (folder / "config.json").write_text(json.dumps(hf))
    _, pieces = READERS[method](hf, load_model(target).config)
    shapes = {piece.name: piece.shape for found in pieces.values() for piece in found}
    rng = np.random.default_rng(7)
    declared = [(name, np.dtype(np.float32), shape) for name, shape in shapes.items()]
    arrays = (rng.normal(0, 0.3, shape).astype(np.float32) for shape in shapes.values())
    write_file(folder / "model.safetensors", declared, arrays)
    return folder


def heads_engine(target: Path, folder: Path, method: str, **settings: Any) -> jengine.LLM:
    return tiny_engine(target, **drafting(folder, method=method), **settings)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_the_same_tokens_and_logprobs_as_without(target: Path, tmp_path: Path, method: str) -> None:
    folder = write_heads(tmp_path, method, target)
    with heads_engine(target, folder, method) as llm:
        with rebuilt(llm, speculative=None) as plain:
            expected = plain.generate(PROMPTS, params())
        for _ in range(2):
            same(llm.generate(PROMPTS, params()), expected)
        assert drafted(llm).drafted > 0
        with rebuilt(llm, num_blocks=14) as small:
            same(small.generate(PROMPTS, params()), expected)
        assert is_idle(llm)


def loaded(folder: Path, method: str, target: Path) -> tuple[Any, nnx.Module]:
    """The model, and its heads."""
    model = load_model(target)
    heads, pieces = READERS[method](json.loads((folder / "config.json").read_text()), model.config)
    return model, with_values(heads, load_params(folder, heads, pieces))


def eagle_guesses(model: Any, eagle: Any, known: list[int]) -> list[int]:
    """By one pass over whole sequences for each guess."""
    tokens = jnp.array([known[:-1]])
    states = model(tokens, whole_sequences(tokens.shape))
    following, guesses = known[1:], []
    for _ in range(DRAFTS):
        context = whole_sequences((1, len(following)))
        last = eagle(jnp.array([following]), states, context)[:, -1:]
        guesses.append(int(model.logits(last)[0, 0].argmax()))
        following, states = [*following, guesses[-1]], jnp.concatenate([states, last], axis=1)
    return guesses


def medusa_guesses(model: Any, medusa: Any, known: list[int]) -> list[int]:
    tokens = jnp.array([known[:-1]])
    last = model(tokens, whole_sequences(tokens.shape))[0, -1:]
    return [int(head(last, jnp.zeros(1, jnp.int32))[0].argmax()) for head in medusa.heads]


@pytest.mark.parametrize("method", [pytest.param("eagle", marks=pytest.mark.slow), "medusa"])
def test_guesses_are_those_of_whole_sequences(target: Path, tmp_path: Path, method: str) -> None:
    """A prompt of several chunks, and one of a single token."""
    folder = write_heads(tmp_path, method, target)
    by_hand = {"eagle": eagle_guesses, "medusa": medusa_guesses}[method]
    prompts = random_prompts(1, 150, seed=5)
    sampling = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    with heads_engine(target, folder, method) as llm:
        for prompt in prompts:
            with rebuilt(llm, max_num_batched_tokens=64) as fresh:
                [output] = fresh.generate([prompt], sampling)
                state = fresh.engine.loaded.state
                found = np.asarray(state.guesses)[0].tolist()
            expected = by_hand(
                *loaded(folder, method, target), prompt + output.outputs[0].token_ids
            )
            assert found == expected


def test_heads_of_another_model_are_refused(target: Path, tmp_path: Path) -> None:
    config = load_model(target).config
    with pytest.raises(CheckpointError, match="hidden_size=64 for a model with 32"):
        read_eagle({**OWN["eagle"], "hidden_size": 64}, config)
    with pytest.raises(CheckpointError, match="vocab_size=5"):
        read_medusa({**OWN["medusa"], "vocab_size": 5}, config)
    with pytest.raises(CheckpointError, match="truncated_vocab_size=9"):
        read_medusa({**OWN["medusa"], "truncated_vocab_size": 9}, config)
    with pytest.raises(CheckpointError, match="medusa_num_heads or num_heads is None"):
        read_medusa({}, config)
    folder = write_heads(tmp_path, "medusa", target, medusa_num_heads=1)
    with pytest.raises(ConfigError, match="1 Medusa heads"):
        heads_engine(target, folder, "medusa")
