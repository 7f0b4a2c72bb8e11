"""Videos in prompts, end to end, equal to transformers in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jengine import SamplingParams
from jengine.media.processor import MediaProcessor
from jengine.weights.safetensors_io import load_model
from tests.api.engines import answers, tiny_engine
from tests.media.test_videos import FRAMES
from tests.media.tiny_vision import (
    BEGIN,
    END,
    IMAGE,
    VIDEO,
    greedy,
    model_of,
    picture,
    write_vision,
)

pytestmark = pytest.mark.slow
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
PROMPT = [5, BEGIN, VIDEO, END, 7, BEGIN, IMAGE, END, 8]
GIVEN = {"video": (FRAMES, {"fps": 6.0}), "image": picture(30, 50)}


def inputs_of(folder: Path) -> dict[str, Any]:
    """The prompt as a model of transformers takes it."""
    import torch

    vision = load_model(folder).config.vision
    assert vision is not None
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    ids, spans = MediaProcessor(vision, settings).expanded(PROMPT, GIVEN)
    kinds = {"image": list[Any](), "video": list[Any]()}
    for span in spans:
        values = np.frombuffer(span.values, np.float32).reshape(int(np.prod(span.grid)), -1)
        if span.kind == "image":  # the picture is each of the frames of a patch
            values = values.reshape(len(values), 3, 1, -1).repeat(2, axis=2)
        kinds[span.kind].append((values.reshape(values.shape[0], -1), span.grid))
    videos = kinds["video"]
    whole = (sum(grid[0] for _, grid in videos), *videos[0][1][1:])
    types = [1 if token == IMAGE else 2 if token == VIDEO else 0 for token in ids]
    inputs = {
        "input_ids": torch.tensor([ids]),
        "mm_token_type_ids": torch.tensor([types]),
        "pixel_values": torch.tensor(kinds["image"][0][0]),
        "image_grid_thw": torch.tensor([kinds["image"][0][1]]),
        "pixel_values_videos": torch.tensor(np.concatenate([values for values, _ in videos])),
        "video_grid_thw": torch.tensor([whole]),
    }
    if vision.steps_per_second:
        inputs["second_per_grid_ts"] = torch.tensor([2 / 6])
    return inputs


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_videos_beside_images(family: str, tmp_path: Path) -> None:
    folder = write_vision(tmp_path, family)
    expected = greedy(model_of(folder, family), inputs_of(folder), 10)
    llm = tiny_engine(folder)
    prompts = [{"prompt_token_ids": PROMPT, "multi_modal_data": GIVEN}, [3, 4, 5]]
    found = llm.generate(prompts, GREEDY)
    assert answers(found)[0] == [expected]
    assert len(found[0].prompt_token_ids) > 60
    llm.shutdown()
