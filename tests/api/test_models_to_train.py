"""Modules without an engine: random ones, saved ones, and pictures to train them with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from PIL import Image

import jengine
from jengine.errors import ConfigError, RequestError, UnsupportedFeature
from tests.models.tiny_models import FAMILIES, tiny_settings

QWEN = {"architectures": [FAMILIES["qwen3"]], **tiny_settings("qwen3")}
TOWER = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
LLAVA: dict[str, Any] = {
    "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava",
    "image_token_index": 3, "vision_feature_layer": -1, "torch_dtype": "float32",
    "text_config": {**tiny_settings("llama"), "model_type": "llama"},
    "vision_config": {
        **TOWER, "model_type": "clip_vision_model", "num_attention_heads": 2, "image_size": 16,
        "patch_size": 8,
    },
}  # fmt: skip
SETTINGS = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}


def made(config: dict[str, Any], **options: Any) -> Any:
    return jengine.from_config(config, rngs=nnx.Rngs(0), **options)


def picture(level: int) -> Image.Image:
    return Image.new("RGB", (16, 16), (level, 0, 255 - level))


@nnx.jit
def scores_of(model: Any, *given: Any) -> jax.Array:
    return model.score(*given)


def test_a_random_model_is_saved_and_read_back(tmp_path: Path) -> None:
    model = made(QWEN, dtype="float32", mesh=jax.make_mesh((1,), ("model",)))
    tokens = np.array([[5, 6, 7]])
    scores = scores_of(model, tokens)
    assert scores.dtype == np.float32 and np.ptp(scores) > 0
    jengine.save_model(model, tmp_path / "saved")
    again = jengine.load_model(tmp_path / "saved")
    np.testing.assert_array_equal(scores_of(again, tokens), scores)


def test_pictures_stand_in_sequences_of_a_batch() -> None:
    model = made(LLAVA)
    first, *others = [([1, 3, 5], [picture(9)]), ([1, 8, 3, 5, 6], [picture(200)]), ([7, 7], [])]

    def scored(*prompts: Any) -> tuple[Any, Any]:
        batch = jengine.picture_batch(model, prompts, settings=SETTINGS)
        return batch, np.asarray(scores_of(model, batch.tokens, batch.pictures))

    batch, scores = scored(first, *others)
    assert batch.lengths.tolist() == [6, 8, 2] and batch.tokens.shape == (3, 8)
    _, turned = scored(*others, first)
    np.testing.assert_allclose(turned, scores[[1, 2, 0]], atol=1e-5)
    _, changed = scored(([1, 3, 5], [picture(90)]), *others)
    np.testing.assert_allclose(changed[1:], scores[1:], atol=1e-5)
    np.testing.assert_allclose(changed[0, 0], scores[0, 0], atol=1e-5)
    assert np.abs(changed[0, 1:6] - scores[0, 1:6]).max(axis=1).min() > 1e-4


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: jengine.from_config(QWEN, rngs=0), ConfigError, "expected a flax.nnx.Rngs"),
        (lambda: jengine.save_model({}, "x"), ConfigError, "given a dict, expected a module"),
        (lambda: jengine.picture_batch(made(QWEN), [([1], [])]), UnsupportedFeature, "no pictures"),
        (lambda: jengine.picture_batch(made(LLAVA), []), RequestError, "prompts are empty"),
        (
            lambda: jengine.picture_batch(made(LLAVA), [([1, 3], [])], settings=SETTINGS),
            RequestError,
            "expected one for each",
        ),
        (
            lambda: jengine.picture_batch(
                made(LLAVA), [([3], [picture(1)])], settings=SETTINGS, length=3
            ),
            RequestError,
            "a sequence has 4 tokens",
        ),
    ],
)
def test_bad_input(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
