"""EAGLE, MTP and Medusa heads: they draft what their definitions say, and change no token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jengine import SamplingParams
from jengine.assembly.drafter_source import numbers_of_a_draft, numbers_read
from jengine.errors import CheckpointError, ConfigError
from jengine.models.context import whole_sequences
from jengine.models.draft_heads.eagle import read_eagle
from jengine.models.draft_heads.eagle3_file import AUX_LAYERS, read_eagle3
from jengine.models.draft_heads.medusa import read_medusa
from jengine.weights.abstract import with_values
from jengine.weights.folder import read_model_config
from jengine.weights.safetensors_io import load_model, stream
from tests.api.draft_heads import (
    METHODS,
    OWN,
    heads_engine,
    read_heads,
    write_heads,
    write_mtp_model,
    write_target,
)
from tests.api.engines import is_idle, random_prompts, rebuilt
from tests.api.test_draft_model import DRAFTS, PROMPTS, SIZES, drafted
from tests.api.test_speculation import params, same
from tests.marks import slow
from tests.models.tiny_models import write_tiny_native

SLOW = pytest.mark.slow
LAYER = 8 * 8 * 32 + 32 * 32 + 3 * 32 * 48 + 2 * 32  # numbers of qkv, out, MLP and norms


def check_answers(target: Path, folder: Path, method: str) -> None:
    """The tokens and log-probabilities of plain decoding, also from the prefix cache and after
    preemption."""
    with heads_engine(target, folder, method) as llm:
        with rebuilt(llm, speculative=None) as plain:
            expected = plain.generate(PROMPTS, params())
        for _ in range(2):
            same(llm.generate(PROMPTS, params()), expected)
        assert drafted(llm).drafted > 0
        with rebuilt(llm, num_blocks=14) as small:
            same(small.generate(PROMPTS, params()), expected)
        assert is_idle(llm)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_the_same_tokens_and_logprobs_as_without(tmp_path: Path, method: str) -> None:
    (tmp_path / "heads").mkdir()
    target = write_target(tmp_path / "model", method)
    check_answers(target, write_heads(tmp_path / "heads", method, target), method)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "method"),
    [("lfm2", "medusa"), ("bamba", "eagle"), ("lfm2", "eagle3"), ("qwen3_next", "eagle3")],
)
def test_heads_of_a_model_with_recurrent_layers(tmp_path: Path, family: str, method: str) -> None:
    (tmp_path / "heads").mkdir()
    target = write_tiny_native(tmp_path / "model", family, **SIZES)
    check_answers(target, write_heads(tmp_path / "heads", method, target), method)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["deepseek_v3", "qwen3_next"])
def test_the_mtp_layer_of_other_models(tmp_path: Path, family: str) -> None:
    """With latent attention; with recurrent layers, of which the MTP layer is none."""
    target = write_mtp_model(tmp_path, family)
    check_answers(target, target, "mtp")


def loaded(folder: Path, method: str, target: Path) -> tuple[Any, nnx.Module]:
    """The model, and its heads."""
    heads, tensors = read_heads(folder, method, target)
    values = dict(stream(tensors, heads.model, heads.pieces))
    return load_model(target), with_values(heads.model, values)


def decoded_drafts(model: Any, head: Any, known: list[int]) -> list[int]:
    """By one pass over whole sequences for each draft."""
    tokens = jnp.array([known[:-1]])
    context = whole_sequences(tokens.shape, keep=getattr(head, "points", ()))
    hidden = model(tokens, context)
    states = head.states(hidden, context.kept)
    following, next_drafts = known[1:], []
    for _ in range(DRAFTS):
        context = whole_sequences((1, len(following)))
        last = head(jnp.array([following]), states, context, model)[:, -1:]
        next_drafts.append(int(head.logits(last[0], jnp.zeros(1, jnp.int32), model)[0].argmax()))
        following, states = [*following, next_drafts[-1]], jnp.concatenate([states, last], axis=1)
    return next_drafts


def medusa_drafts(model: Any, medusa: Any, known: list[int]) -> list[int]:
    tokens = jnp.array([known[:-1]])
    hidden = jax.jit(lambda tokens: model(tokens, whole_sequences(tokens.shape)))(tokens)
    last = hidden[0, -1:]
    return [int(head(last, jnp.zeros(1, jnp.int32))[0].argmax()) for head in medusa.heads]


@pytest.mark.parametrize(
    "method",
    ["medusa", *slow("eagle", "eagle3", "mtp")],
)
def test_drafts_are_those_of_whole_sequences(tmp_path: Path, method: str) -> None:
    """A prompt of several chunks, and one of a single token."""
    (tmp_path / "heads").mkdir()
    target = write_target(tmp_path / "model", method)
    folder = write_heads(tmp_path / "heads", method, target)
    by_hand = medusa_drafts if method == "medusa" else decoded_drafts
    model, head = loaded(folder, method, target)
    sampling = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    with heads_engine(target, folder, method, variant="greedy") as llm:
        for prompt in random_prompts(1, 150, seed=5):
            with rebuilt(llm, max_num_batched_tokens=64) as fresh:
                [output] = fresh.generate([prompt], sampling)
                state = fresh.engine.loaded.state
                found = np.asarray(state.next_drafts)[0].tolist()
            assert found == by_hand(model, head, prompt + output.outputs[0].token_ids)


@pytest.mark.parametrize(
    ("method", "read"),
    # fc, a layer without its first norm, the model's head; Medusa: two layers with biases, a head.
    [("eagle", 2 * 32 * 32 + LAYER - 32 + 128 * 32), ("medusa", 2 * (32 * 32 + 32) + 128 * 32)],
)
def test_a_draft_costs_what_it_reads(tmp_path: Path, method: str, read: int) -> None:
    target = write_target(tmp_path)
    config = read_model_config(target)
    heads, _ = read_heads(write_heads(new_folder(tmp_path, method), method, target), method, target)
    assert numbers_of_a_draft(heads.model, config) == read
    # Two layers, the last norm, and the head, but not the table of embeddings.
    assert numbers_read(load_model(target)) == 2 * LAYER + 32 + 128 * 32


def new_folder(base: Path, name: str) -> Path:
    """A new folder."""
    (base / name).mkdir()
    return base / name


def test_heads_of_another_model_are_refused(tmp_path: Path) -> None:
    target = write_target(tmp_path / "model")
    config = read_model_config(target)
    with pytest.raises(CheckpointError, match="hidden_size=64 for a model with 32"):
        read_eagle({**OWN["eagle"], "hidden_size": 64}, config)
    with pytest.raises(CheckpointError, match="hidden_size=64 for a model with 32"):
        read_eagle3({**OWN["eagle3"], "hidden_size": 64}, config)
    with pytest.raises(CheckpointError, match="model_type='gemma2'"):
        read_eagle3({**OWN["eagle3"], "model_type": "gemma2"}, config)
    with pytest.raises(CheckpointError, match=r"is \[3\] .* from 0 to 2"):
        read_eagle3({**OWN["eagle3"], AUX_LAYERS: [3]}, config)
    with pytest.raises(CheckpointError, match="draft_vocab_size=129"):
        read_eagle3({**OWN["eagle3"], "draft_vocab_size": 129}, config)
    with pytest.raises(CheckpointError, match="vocab_size=5"):
        read_medusa({**OWN["medusa"], "vocab_size": 5}, config)
    with pytest.raises(CheckpointError, match="truncated_vocab_size=9"):
        read_medusa({**OWN["medusa"], "truncated_vocab_size": 9}, config)
    with pytest.raises(CheckpointError, match="medusa_num_heads or num_heads is None"):
        read_medusa({}, config)
    (tmp_path / "medusa").mkdir()
    folder = write_heads(tmp_path / "medusa", "medusa", target, medusa_num_heads=1)
    with pytest.raises(ConfigError, match="1 Medusa heads"):
        heads_engine(target, folder, "medusa")
    with pytest.raises(CheckpointError, match="num_nextn_predict_layers=0"):
        heads_engine(target, target, "mtp")
