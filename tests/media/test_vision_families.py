"""Families with a vision tower: towers, whole engines and saved models, equal to transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jengine import SamplingParams, picture_batch
from jengine.errors import UnsupportedFeature
from jengine.media.families import RULES
from jengine.media.patch_layout import cut, item_of
from jengine.media.processor import spans_of
from jengine.models.vision_tower import PatchInput
from jengine.runner.step.patches import PatchPacker
from jengine.weights.safetensors_io import load_model, save_pretrained
from tests.api.engines import answers, tiny_engine
from tests.media.tiny_vision import (
    BEGIN,
    CONFIGS,
    END,
    IMAGE,
    greedy,
    inputs_of,
    model_of,
    picture,
    processor_of,
    prompt_of,
    write_vision,
)

pytestmark = pytest.mark.slow
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
ONE = [BEGIN, IMAGE, END]
PICTURES = [picture(30, 50), picture(64, 41)]
PROMPTS: list[tuple[list[int], list[Any]]] = [
    ([5, *ONE, 7, *ONE, 8], PICTURES),
    ([3, 4, 5, 6], []),
    ([*ONE, 9], PICTURES[1:]),
]


@pytest.fixture(scope="module", params=list(CONFIGS))
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vision(tmp_path_factory.mktemp(family), family)


def test_patches_and_towers_are_those_of_transformers(family: str, folder: Path) -> None:
    import torch

    model, theirs = load_model(folder), model_of(folder, family)
    vision = model.config.vision
    assert vision is not None
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    layouts = [RULES[vision.family](one.height, one.width, vision, settings) for one in PICTURES]
    items = [
        item_of(layout, cut(one, layout.parts, layout.scaling.resample), vision)
        for layout, one in zip(layouts, PICTURES, strict=True)
    ]
    inputs = inputs_of(processor_of(family), PROMPTS[0][0], PICTURES)
    for name in ("input_ids", "mm_token_type_ids", "token_type_ids"):
        inputs.pop(name, None)
    with torch.no_grad():
        found = theirs.model.get_image_features(**inputs, return_dict=True)
    each = [found.pooler_output, *(getattr(found, "deepstack_features", None) or [])]
    wanted = torch.cat([torch.cat(list(one)) for one in each], dim=-1).numpy()
    spans, rows = [], 0
    for item in items:
        (span,) = spans_of(item, "image", "k", 0, vision)
        taken = np.arange(rows, rows + span.length, dtype=np.int32)
        spans.append(span.__class__(**{**fields(span), "rows": taken.tobytes()}))
        rows += span.length
    packer = PatchPacker(vision)
    used = sum(map(packer.places_taken, spans))
    packed = packer.pack(spans, -(-used // 4) * 4 + 8, rows)
    made = np.asarray(model.encode(PatchInput(*map(np.asarray, packed[:4]))))
    ours = np.zeros((rows + 1, made.shape[1]), np.float32)
    ours[packed.rows] = made
    np.testing.assert_allclose(ours[:rows], wanted, atol=1e-4, rtol=1e-4)


def fields(span: Any) -> dict[str, Any]:
    return {name: getattr(span, name) for name in span.__struct_fields__}


def test_engines_answer_as_transformers_does(family: str, folder: Path) -> None:
    theirs, processor = model_of(folder, family), processor_of(family)
    expected = [[greedy(theirs, inputs_of(processor, *one), 10)] for one in PROMPTS]
    given = [
        {"prompt_token_ids": prompt_of(family, ids), "multi_modal_data": {"image": pictures}}
        if pictures
        else ids
        for ids, pictures in PROMPTS
    ]
    llm = tiny_engine(folder)
    assert answers(llm.generate(given, GREEDY)) == expected
    llm.shutdown()


def test_whole_sequences_score_as_in_transformers(family: str, folder: Path) -> None:
    import torch

    model, theirs, processor = load_model(folder), model_of(folder, family), processor_of(family)
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    prompts = [(prompt_of(family, ids), pictures) for ids, pictures in PROMPTS]
    if family in ("gemma3", "internvl", "gemma4_ahead"):
        with pytest.raises(UnsupportedFeature, match="see ahead or need texts around them"):
            picture_batch(model, prompts, settings=settings)
        return
    batch = picture_batch(model, prompts, settings=settings, length=300)
    scores = model.score(batch.tokens[:, :-1], batch.pictures)
    for ours, length, prompt in zip(scores, batch.lengths, PROMPTS, strict=True):
        with torch.no_grad():
            wanted = theirs(**inputs_of(processor, *prompt)).logits[0].numpy()
        assert len(wanted) == length
        np.testing.assert_allclose(ours[:length], wanted, atol=2e-3)


def test_saved_models_load_in_transformers(family: str, folder: Path, tmp_path: Path) -> None:
    import torch

    save_pretrained(load_model(folder), tmp_path)
    first, again = model_of(folder, family), model_of(tmp_path, family)
    inputs = inputs_of(processor_of(family), *PROMPTS[0])
    with torch.no_grad():
        assert torch.equal(first(**inputs).logits, again(**inputs).logits)


@pytest.mark.parametrize("sections", [[2, 2, 3], [1, 9, 9]])
def test_pairs_may_be_divided_otherwise_than_published(sections: list[int], tmp_path: Path) -> None:
    write_vision(tmp_path, "qwen3_vl")
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    config["text_config"]["rope_parameters"]["mrope_section"] = sections
    file.write_text(json.dumps(config))
    theirs, processor = model_of(tmp_path, "qwen3_vl"), processor_of("qwen3_vl")
    expected = [greedy(theirs, inputs_of(processor, *PROMPTS[0]), 10)]
    ids, pictures = PROMPTS[0]
    llm = tiny_engine(tmp_path)
    given = {"prompt_token_ids": ids, "multi_modal_data": {"image": pictures}}
    assert answers(llm.generate([given], GREEDY)) == [expected]
    llm.shutdown()
