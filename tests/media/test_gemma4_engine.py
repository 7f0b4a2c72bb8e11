"""Gemma 4 with images: scores of whole prompts, chunks and cached prefixes are transformers'."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import jengine
from jengine.config import ModelConfig
from jengine.errors import CheckpointError, RequestError, UnsupportedFeature
from jengine.media.families import RULES
from jengine.media.patch_layout import cut, item_of
from jengine.models import registry
from jengine.research.engine_run import decoded, finished, scored, teacher_forced
from tests.api.engines import rebuilt, tiny_engine
from tests.marks import slow
from tests.media.test_videos import vision_of
from tests.media.tiny_vision import (
    BEGIN,
    END,
    IMAGE,
    gemma4_config,
    greedy,
    inputs_of,
    model_of,
    picture,
    processor_of,
    write_vision,
)

pytest.importorskip("torch")
pytest.importorskip("transformers")

ANSWER = 8
PICTURES = [picture(30, 50), picture(64, 41)]
PROMPTS = [
    ([5, IMAGE, 7, 9, 11, IMAGE, 8, 6], PICTURES),
    ([3, 4, 5, 6], []),
    ([IMAGE, 9], PICTURES[1:]),
]


class Expected(NamedTuple):
    """Greedy tokens, and log-probabilities before each of them and after each of the prompt's."""

    tokens: list[int]
    rows: np.ndarray


@pytest.fixture(scope="module", params=["gemma4_ahead", *slow("gemma4")])
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vision(tmp_path_factory.mktemp(family), family)


@pytest.fixture(scope="module")
def expected(family: str, folder: Path) -> list[Expected]:
    import torch

    model, processor, found = model_of(folder, family), processor_of(family), list[Expected]()
    for ids, pictures in PROMPTS:
        around = {IMAGE: [BEGIN, IMAGE, END]}
        whole = [one for token in ids for one in around.get(token, [token])]
        tokens = greedy(model, inputs_of(processor, whole, pictures), ANSWER)
        with torch.no_grad():
            logits = model(**inputs_of(processor, whole + tokens[:-1], pictures)).logits[0]
        found.append(Expected(tokens, logits.double().log_softmax(-1).numpy()))
    return found


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[jengine.LLM]:
    engine = tiny_engine(folder)
    yield engine
    engine.shutdown()


def asked(ids: list[int], pictures: list[Any]) -> Any:
    """A prompt in which one token stands for an image, as chat templates have it."""
    return {"prompt_token_ids": ids, "multi_modal_data": {"image": pictures}} if pictures else ids


def check(outputs: list[jengine.RequestOutput], expected: list[Expected]) -> None:
    for output, wanted in zip(outputs, expected, strict=True):
        rows = decoded(finished(output))
        if output.prompt_logprobs is not None:
            rows = np.concatenate([teacher_forced(output)[:-1], rows])
            assert len(rows) == len(wanted.rows)
        assert list(output.outputs[0].token_ids) == wanted.tokens
        np.testing.assert_allclose(rows, wanted.rows[-len(rows) :], atol=1e-4)


def test_prompts_score_as_in_transformers(llm: jengine.LLM, expected: list[Expected]) -> None:
    """Whole, then from cached prefixes, then in chunks that end within images, or beside them."""
    given = [asked(*one) for one in PROMPTS]
    # Scores of prompts would be computed without the prefix cache.
    of_answers = scored(ANSWER).clone(prompt_logprobs=None)
    check(llm.generate(given, scored(ANSWER)), expected)
    again = llm.generate(given, of_answers)
    check(again, expected)
    assert again[0].num_cached_tokens > 64
    with rebuilt(llm, num_blocks=24, long_prefill_token_threshold=24, prefix_caching=False) as cut:
        check(cut.generate(given, scored(ANSWER)), expected)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"audio": np.zeros(99, np.float32)}, RequestError, r"At most 0 audio\(s\)"),
        ({"video": np.zeros((2, 8, 8, 3), np.uint8)}, UnsupportedFeature, "videos for models of"),
    ],
)
def test_audio_and_videos_are_refused(
    given: dict[str, Any], error: type[Exception], message: str, llm: jengine.LLM
) -> None:
    with pytest.raises(error, match=message):
        llm.generate({"prompt_token_ids": [5, 6], "multi_modal_data": given})


SIZES = [(30, 50), (1, 1), (1, 90), (400, 2), (33, 1000), (96, 80), (500, 3)]


def test_patches_are_those_of_transformers() -> None:
    vision, processor = vision_of("gemma4"), processor_of("gemma4")
    pictures = [picture(*size) for size in SIZES]
    theirs = processor(pictures, return_tensors="np")
    for number, one in enumerate(pictures):
        layout = RULES["gemma4"](*SIZES[number], vision, {"max_soft_tokens": 70})
        values = item_of(layout, cut(one, layout.parts, layout.scaling.resample), vision).values
        _, rows, columns = layout.grid
        count = theirs["num_soft_tokens_per_image"][number]
        assert layout.tokens == [BEGIN, *[IMAGE] * count, END]
        wanted = theirs["pixel_values"][number, : rows * columns]
        assert rows * columns == (theirs["image_position_ids"][number, :, 0] >= 0).sum()
        # Ours go square after square, with channels before pixels.
        wanted = wanted.reshape(rows // 2, 2, columns // 2, 2, 16, 3).transpose(0, 2, 1, 3, 5, 4)
        np.testing.assert_allclose(values, 2 * wanted.reshape(values.shape) - 1, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_soft_tokens": 100}, r"max_soft_tokens=100: expected one of \(70, 140, 280"),
        ({"max_soft_tokens": 560}, "hf_overrides={'vision_soft_tokens_per_image': 560}"),
        ({"patch_size": 8}, "patch_size=8: this model takes 4"),
        ({"do_resize": False}, "without do_resize expected multiples of 8, and at most 280"),
    ],
)
def test_images_that_no_step_was_made_for_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        RULES["gemma4"](30, 50, vision_of("gemma4_ahead"), settings)


def read(part: str = "vision_config", **given: Any) -> ModelConfig:
    config = gemma4_config(ahead=True)
    config[part] |= given
    return registry.model_config({**config, "architectures": ["Gemma4ForConditionalGeneration"]})


def test_published_files_have_another_name_for_the_rotation_of_patches() -> None:
    assert read(rope_parameters={"rope_type": "default", "rope_theta": 100.0}) == read()


@pytest.mark.parametrize(
    ("part", "given", "message"),
    [
        ("text_config", {"num_kv_shared_layers": 2}, "num_kv_shared_layers.*is 'vision'"),
        ("vision_config", {"num_key_value_heads": 1}, "num_key_value_heads"),
        ("vision_config", {"head_dim": 10}, "a multiple of 4"),
        ("vision_config", {"model_type": "gemma4_unified_vision"}, "'gemma4_vision'"),
        ("vision_config", {"attention_bias": True}, "attention_bias"),
        ("vision_config", {"rope_parameters": {"rope_type": "linear"}}, "rope_type.*'axial'"),
    ],
)
def test_towers_that_are_not_built_are_refused(
    part: str, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(part, **given)
