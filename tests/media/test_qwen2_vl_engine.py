"""Images in prompts, end to end, equal to transformers in float32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jengine
from jengine import SamplingParams
from jengine.errors import RequestError
from jengine.runner.variants.parts import Part
from tests.api.engines import answers, is_idle, rebuilt, tiny_engine
from tests.api.processor_functions import OneToken
from tests.media.tiny_vision import (
    BEGIN,
    END,
    IMAGE,
    greedy,
    inputs_of,
    model_of,
    picture,
    processor_of,
    write_vision,
)

pytestmark = pytest.mark.slow
FAMILY = "qwen2_vl"
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
SMALL, WIDE, LARGE = picture(30, 50), picture(17, 90), picture(64, 64)
ONE = [BEGIN, IMAGE, END]
PROMPTS: list[tuple[list[int], list[Any]]] = [
    ([5, 6, *ONE, 7, 8], [SMALL]),
    ([5, *ONE, 9, *ONE, 11, 12], [WIDE, LARGE]),
    ([3, 4, 5, 6], []),
    ([*ONE, *ONE], [SMALL, SMALL]),
]


def asked(prompts: list[tuple[list[int], list[Any]]]) -> list[Any]:
    return [
        {"prompt_token_ids": ids, "multi_modal_data": {"image": given}} if given else ids
        for ids, given in prompts
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vision(tmp_path_factory.mktemp(FAMILY), FAMILY)


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[jengine.LLM]:
    engine = tiny_engine(folder, limit_mm_per_prompt={"image": 3})
    yield engine
    assert is_idle(engine)
    engine.shutdown()


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[list[int]]]:
    """What transformers answers."""
    model, processor = model_of(folder, FAMILY), processor_of(FAMILY)
    return [[greedy(model, inputs_of(processor, *one), 10)] for one in PROMPTS]


def test_mixed_batches_answer_as_transformers_does(llm: jengine.LLM, expected: Any) -> None:
    outputs = llm.generate(asked(PROMPTS), GREEDY)
    assert answers(outputs) == expected
    assert len(outputs[0].prompt_token_ids) > 4 + len(ONE), "placeholders are expanded"


def test_one_image_is_encoded_once_and_its_prefix_found(llm: jengine.LLM, expected: Any) -> None:
    llm.reset_prefix_cache()
    llm.generate(asked(PROMPTS[1:2]), GREEDY)
    (again,) = llm.generate(asked(PROMPTS[1:2]), GREEDY)
    block = llm.engine.cache.block_size
    assert again.num_cached_tokens == (len(again.prompt_token_ids) - 1) // block * block > 0
    other = [PROMPTS[1][0], [WIDE, picture(64, 64, seed=1)]]
    (changed,) = llm.generate(asked([other]), GREEDY)
    assert 0 < changed.num_cached_tokens < again.num_cached_tokens, "another image"
    assert answers([again]) == expected[1:2] != answers([changed])


def test_chunks_may_cut_an_image_and_rows_be_preempted(llm: jengine.LLM) -> None:
    longer = GREEDY.clone(max_tokens=60)
    llm.reset_prefix_cache()
    whole = answers(llm.generate(asked(PROMPTS), longer))
    with rebuilt(llm, num_blocks=24, long_prefill_token_threshold=32) as small:
        found = answers(small.generate(asked(PROMPTS), longer))
        assert small.stats().preemptions > 0
    assert found == whole


def test_processors_of_the_host_change_their_answers(folder: Path, expected: Any) -> None:
    forced = GREEDY.clone(extra_args={"target_token": 7})
    settings = {"limit_mm_per_prompt": {"image": 3}, "logits_processors": [OneToken]}
    with tiny_engine(folder, **settings) as llm:
        found = answers(llm.generate(asked(PROMPTS[:2]), [GREEDY, forced]))
    assert found == [expected[0], [[7] * 10]]


def test_images_wait_for_room(llm: jengine.LLM, expected: Any) -> None:
    with rebuilt(llm, encoder_tokens=100) as small:
        assert answers(small.generate(asked(PROMPTS), GREEDY)) == expected
        crowd = [picture(64, 64, seed) for seed in range(3)]
        with pytest.raises(RequestError, match="expected at most 100"):
            small.generate(asked([(ONE * 3, crowd)]), GREEDY)


def test_programs_of_the_encoder_are_counted(llm: jengine.LLM) -> None:
    llm.generate(asked(PROMPTS), GREEDY)
    ran = [entry for entry in llm.ledger.entries.values() if entry.features.part is Part.ENCODER]
    assert ran and all(entry.hits and entry.useful_tokens for entry in ran)


def test_images_of_every_kind(llm: jengine.LLM, expected: Any, tmp_path: Path) -> None:
    file = tmp_path / "small.png"
    SMALL.save(file)
    array = np.asarray(SMALL)
    kinds = [SMALL, array, jnp.asarray(array), np.moveaxis(array, -1, 0), file, str(file),
             file.read_bytes()]  # fmt: skip
    given = [
        {"prompt_token_ids": PROMPTS[0][0], "multi_modal_data": {"image": one}} for one in kinds
    ]
    assert answers(llm.generate(given, GREEDY)) == expected[:1] * len(kinds)


@pytest.mark.parametrize(
    ("ids", "data", "complaint"),
    [
        (ONE, {"image": [SMALL] * 2}, "1 placeholders .*, and 2 images"),
        ([5, 6], {"image": SMALL}, "Failed to apply prompt replacement for mm_items"),
        (ONE * 4, {"image": [SMALL] * 4}, r"At most 3 image\(s\) may be provided in one prompt"),
        (ONE, {"image": np.zeros((8, 8, 3))}, "dtype float64; expected uint8"),
        (ONE, {"image": np.zeros((8, 2), np.uint8).T[None, None]}, "has shape"),
        (ONE, {"image": b"no picture"}, "no picture that can be read"),
        (ONE, {"image": picture(4, 1000)}, "longer side of at most 200 times"),
        (ONE, {"audio": b"a sound"}, r"At most 0 audio\(s\) .* this model takes images"),
        (ONE, {"picture": SMALL}, "no key 'picture'"),
        (ONE, {"image": 7}, "is a int"),
        (ONE, [SMALL], "multi_modal_data is a list"),
    ],
)
def test_bad_images_are_errors_of_their_request(
    llm: jengine.LLM, ids: list[int], data: Any, complaint: str
) -> None:
    with pytest.raises(RequestError, match=complaint):
        llm.generate({"prompt_token_ids": ids, "multi_modal_data": data}, GREEDY)
    assert is_idle(llm)


def test_programs_of_images_are_compiled_at_the_start(folder: Path, expected: Any) -> None:
    sizes = {"encoder_tokens": 256, "patch_sizes": [1024]}
    settings: dict[str, Any] = {"enforce_eager": False, "strict": True, "compilation_config": sizes}
    other = tiny_engine(folder, **settings)
    compiled = set(other.ledger.entries)
    assert {True, False} == {features.embeds for _, features in compiled}
    assert any(features.part is Part.ENCODER for _, features in compiled)
    assert answers(other.generate(asked(PROMPTS), GREEDY)) == expected
    assert set(other.ledger.entries) == compiled
    other.shutdown()
    text = tiny_engine(folder, limit_mm_per_prompt={"image": 0, "video": 0}, **settings)
    assert not any(
        features.embeds or features.part is Part.ENCODER for _, features in text.ledger.entries
    )
    text.shutdown()


def test_beams_see_images(llm: jengine.LLM, expected: Any) -> None:
    (found,) = llm.beam_search(asked(PROMPTS[:1]), jengine.BeamSearchParams(1, 4))
    assert found.sequences[0].tokens[-4:] == expected[0][0][:4], "one beam is greedy"


def test_options_of_the_preprocessing(llm: jengine.LLM) -> None:
    given = {"prompt_token_ids": ONE, "multi_modal_data": {"image": LARGE}}
    (usual,) = llm.generate(given, GREEDY)
    (small,) = llm.generate({**given, "mm_processor_kwargs": {"max_pixels": 1024}}, GREEDY)
    assert len(small.prompt_token_ids) < len(usual.prompt_token_ids)
    with pytest.raises(RequestError, match="no key 'max_pixel'"):
        llm.generate({**given, "mm_processor_kwargs": {"max_pixel": 1024}}, GREEDY)
    with pytest.raises(RequestError, match=r"no key 'max_patches' for models .* 'qwen2_vl'"):
        llm.generate({"prompt_token_ids": [3], "mm_processor_kwargs": {"max_patches": 2}}, GREEDY)


@pytest.mark.parametrize(
    "settings", [{"multiprocess": True}, {"tensor_parallel_size": 2}, {"attention_backend": "xla"}]
)
def test_images_in_engines_of_other_kinds(folder: Path, expected: Any, settings: Any) -> None:
    if settings.get("tensor_parallel_size", 1) > jax.device_count():
        pytest.skip("needs XLA_FLAGS=--xla_force_host_platform_device_count=2")
    other = tiny_engine(folder, **settings)
    assert answers(other.generate(asked(PROMPTS), GREEDY)) == expected
    other.shutdown()
