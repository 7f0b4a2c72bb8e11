"""Pooling models equal transformers: embeddings of decoders, in chunks and in full batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    Qwen2Config,
    Qwen2Model,
    Qwen3Config,
    Qwen3ForSequenceClassification,
    Qwen3Model,
)

import jengine
from jengine import LLM, PoolingParams
from jengine.errors import CheckpointError, ConfigError, RequestError, UnsupportedFeature
from jengine.models.reading.fields import Fields
from jengine.models.reading.pooling import label_names

SIZES: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 256, "dtype": "float32", "pad_token_id": 0,
}  # fmt: skip
SMALL: dict[str, Any] = {
    "skip_tokenizer_init": True, "enforce_eager": True, "show_progress": False,
    "max_num_batched_tokens": 64, "compilation_config": {"prefill_tokens": [64]},
}  # fmt: skip
NO_BAR: dict[str, Any] = {"use_tqdm": False}


def prompts(*lengths: int) -> list[list[int]]:
    """Random prompts."""
    rng = np.random.default_rng(0)
    return [rng.integers(3, 97, length).tolist() for length in lengths]


PROMPTS = prompts(5, 40, 1, 130, 77, 200, 256, 12, 12)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Qwen3Model]:
    """A bare decoder's folder, as embedding models are published, and the model."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("decoder")
    model = Qwen3Model(Qwen3Config(**SIZES)).eval()
    model.save_pretrained(folder)
    return folder, model


@pytest.fixture(scope="module")
def last(decoder: tuple[Path, Qwen3Model]) -> Iterator[LLM]:
    """An engine that embeds with the last token."""
    with LLM(decoder[0], hf_overrides={"is_matryoshka": True}, **SMALL) as llm:
        yield llm


def hidden_states(model: Any, ids: list[int]) -> np.ndarray:
    """f32[tokens, hidden] of one prompt alone."""
    with torch.no_grad():
        return model(torch.tensor([ids])).last_hidden_state[0].numpy()


def unit(x: np.ndarray) -> np.ndarray:
    """Rows of length one."""
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def cosines(a: Any, b: Any) -> np.ndarray:
    """The cosine of each pair of rows."""
    return (unit(np.asarray(a)) * unit(np.asarray(b))).sum(axis=-1)


def test_embeddings_of_a_decoder_in_chunks(last: LLM, decoder: tuple[Path, Qwen3Model]) -> None:
    found = last.embed(PROMPTS, **NO_BAR)
    assert all(isinstance(one, jengine.EmbeddingRequestOutput) for one in found)
    expected = [hidden_states(decoder[1], ids)[-1] for ids in PROMPTS]
    embeddings = np.array([one.outputs.embedding for one in found])
    assert cosines(embeddings, expected).min() > 0.99999
    assert np.allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-5)
    assert found[1].prompt_token_ids == PROMPTS[1] and found[1].finished


def test_a_cached_prefix_gives_the_same_embedding(last: LLM) -> None:
    prompt = prompts(100)[0]
    first = last.embed([prompt], **NO_BAR)[0]
    again = last.embed([prompt], **NO_BAR)[0]
    assert again.num_cached_tokens == 96
    assert cosines(first.outputs.embedding, again.outputs.embedding) > 0.99999


@pytest.mark.parametrize("kind", ["MEAN", "CLS"])
def test_pooling_over_chunks(decoder: tuple[Path, Qwen3Model], kind: Any) -> None:
    folder, model = decoder
    with LLM(folder, pooler_config={"pooling_type": kind, "use_activation": False}, **SMALL) as llm:
        found = llm.embed(PROMPTS, **NO_BAR)
        again = llm.embed(PROMPTS[6:7], **NO_BAR)  # nothing of it may come from the cache
    states = [hidden_states(model, ids) for ids in PROMPTS]
    expected = [one.mean(axis=0) if kind == "MEAN" else one[0] for one in states]
    embeddings = np.array([one.outputs.embedding for one in found])
    np.testing.assert_allclose(embeddings, expected, atol=1e-4)
    np.testing.assert_allclose(again[0].outputs.embedding, expected[6], atol=1e-4)


def test_every_token(decoder: tuple[Path, Qwen3Model]) -> None:
    folder, model = decoder
    with LLM(folder, pooler_config=jengine.PoolerConfig(task="token_embed"), **SMALL) as llm:
        found = llm.encode(PROMPTS, pooling_task="token_embed", **NO_BAR)
    for ids, one in zip(PROMPTS, found, strict=True):
        assert one.outputs.data.shape == (len(ids), 32)
        assert cosines(one.outputs.data, hidden_states(model, ids)).min() > 0.99999


def test_dimensions_and_raw_embeddings(last: LLM, decoder: tuple[Path, Qwen3Model]) -> None:
    assert last.supported_tasks == ("embed", "token_embed")
    expected = hidden_states(decoder[1], PROMPTS[1])[-1]
    short = last.embed([PROMPTS[1]], pooling_params=PoolingParams(dimensions=8), **NO_BAR)[0]
    assert len(short.outputs.embedding) == 8
    np.testing.assert_allclose(short.outputs.embedding, unit(expected[:8]), atol=1e-5)
    raw = last.embed([PROMPTS[1]], pooling_params=PoolingParams(use_activation=False), **NO_BAR)[0]
    np.testing.assert_allclose(raw.outputs.embedding, expected, atol=1e-4)


def test_truncation(last: LLM) -> None:
    cut = last.embed([PROMPTS[3]], truncate_prompt_tokens=7, **NO_BAR)[0]
    assert cut.prompt_token_ids == PROMPTS[3][:7]


def test_bad_input_leaves_the_engine_alone(last: LLM, decoder: tuple[Path, Qwen3Model]) -> None:
    bad: list[tuple[Any, dict[str, Any], str]] = [
        ([[500]], {}, "token ids of this model"),
        ([[]], {}, "empty"),
        ([list(range(3, 90)) * 4], {}, "context"),
        ([[5]], {"pooling_params": PoolingParams(dimensions=99)}, "range"),
        ([[5]], {"pooling_params": PoolingParams(step_tag_id=1)}, "step_tag_id"),
        ([[5]], {"pooling_params": PoolingParams(task="classify")}, "overwrite"),
        ([[5]], {"pooling_params": 3}, "PoolingParams"),
        ([], {}, "at least one prompt"),
    ]
    for given, options, words in bad:
        with pytest.raises(ValueError, match=words):
            last.embed(given, **options, **NO_BAR)
    for call, words in (
        (lambda: last.classify([[5]], **NO_BAR), "--convert classify"),
        (lambda: last.encode([[5]], **NO_BAR), "pooling_task required"),
        (lambda: last.encode([[5]], pooling_task="token_embed", **NO_BAR), "PoolerConfig"),
        (lambda: last.generate([[5]], **NO_BAR), "only supported for generative models"),
        (lambda: last.generate([[5]], PoolingParams(), **NO_BAR), "for generative models"),
    ):
        with pytest.raises(RequestError, match=words):
            call()
    with pytest.raises(RequestError, match="was removed"):
        PoolingParams(task="score")  # type: ignore[arg-type]
    expected = hidden_states(decoder[1], PROMPTS[0])[-1]
    found = last.embed([PROMPTS[0]], **NO_BAR)[0]
    assert cosines(found.outputs.embedding, expected) > 0.99999


def test_weights_that_are_not_finite_fail_the_request_alone(
    decoder: tuple[Path, Qwen3Model],
) -> None:
    with LLM(decoder[0], **SMALL) as llm:
        values = llm.engine.loaded.parameters()
        name = "embed.weight"
        poisoned = {**values, name: values[name].at[7].set(np.nan)}
        llm.update_params(poisoned)
        with pytest.raises(RequestError, match="not finite"):
            llm.embed([[8, 7]], **NO_BAR)
        assert np.isfinite(llm.embed([[9, 8]], **NO_BAR)[0].outputs.embedding).all()


def test_classes_of_a_decoder(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = Qwen3Config(**SIZES, id2label={0: "a", 1: "b", 2: "c"})
    model = Qwen3ForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path)
    with LLM(tmp_path, **SMALL) as llm:
        found = llm.classify(PROMPTS, **NO_BAR)
        rewards = llm.reward(
            PROMPTS[:2], pooling_params=PoolingParams(use_activation=False), **NO_BAR
        )
    for index, ids in enumerate(PROMPTS):
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0]
        np.testing.assert_allclose(found[index].outputs.probs, logits.softmax(-1), atol=1e-4)
        if index < 2:
            np.testing.assert_allclose(rewards[index].outputs.data, logits, atol=1e-4)


def test_a_model_that_generates_does_not_pool() -> None:
    with LLM("demo", enforce_eager=True, max_model_len=64, show_progress=False) as llm:
        for call in (llm.embed, llm.classify, llm.reward, llm.encode):
            with pytest.raises(RequestError, match="only supported for pooling models"):
                call(["a"], **NO_BAR)
        with pytest.raises(RequestError, match=r"LLM.score\(\) is only supported for pooling"):
            llm.score("a", "b", **NO_BAR)


def test_a_model_without_a_head_does_not_generate(decoder: tuple[Path, Qwen3Model]) -> None:
    with pytest.raises(ConfigError, match="--runner pooling"):
        LLM(decoder[0], runner="generate", **SMALL)


def test_a_decoder_that_sees_ahead_is_refused(decoder: tuple[Path, Qwen3Model]) -> None:
    with pytest.raises(CheckpointError, match="is_causal=false"):
        LLM(decoder[0], hf_overrides={"is_causal": False}, **SMALL)


@pytest.mark.parametrize(
    "settings",
    [{"enable_lora": True}, {"enable_prompt_embeds": True}, {"num_scheduler_steps": 4}],
)
def test_what_pooling_is_not_built_for(
    decoder: tuple[Path, Qwen3Model], settings: dict[str, Any]
) -> None:
    with pytest.raises(UnsupportedFeature, match=f"{next(iter(settings))}.* with a pooling model"):
        LLM(decoder[0], **SMALL, **settings)


def test_rewards_of_steps(tmp_path: Path) -> None:
    """The scores of the tokens that end a step, as published process reward models give them."""
    torch.manual_seed(0)
    sizes = {name: value for name, value in SIZES.items() if name != "head_dim"}
    model = Qwen2Model(Qwen2Config(**sizes)).eval()
    model.save_pretrained(tmp_path)
    head = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    tensors = {f"model.{name}": one for name, one in model.state_dict().items()}
    tensors |= {f"score.{name}": one.detach() for name, one in head.state_dict().items()}
    save_file(tensors, tmp_path / "model.safetensors")
    overrides = {"architectures": ["Qwen2ForProcessRewardModel"]}
    prompt = [5, 6, 90, 7, 8, 9, 90]
    with LLM(tmp_path, hf_overrides=overrides, pooler_config={"step_tag_id": 90}, **SMALL) as llm:
        llm.health(probe=True)
        (found,) = llm.reward([prompt], **NO_BAR)
    with torch.no_grad():
        scores = head(torch.from_numpy(hidden_states(model, prompt))).softmax(-1)
    np.testing.assert_allclose(found.outputs.data, scores[[2, 6]], atol=1e-4)


@pytest.mark.parametrize(
    ("count", "names"),
    [(2, ("no", "yes")), (None, ("no", "yes")), (3, ("LABEL_0", "LABEL_1", "LABEL_2"))],
)
def test_classes_keep_their_names_beside_their_number(
    count: int | None, names: tuple[str, ...]
) -> None:
    fields = Fields({"id2label": {"1": "yes", "0": "no"}, "num_labels": count})
    assert label_names(fields, "LlamaForSequenceClassification") == names
