"""Vision towers on several devices: a part of every weight on each, or the whole tower for images
of its own. Embeddings and answers are those of one device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jengine import SamplingParams
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.runner.programs.encoders import shared
from jengine.runner.variants.parts import Part
from tests.api.engines import answers, tiny_engine
from tests.media.tiny_vision import BEGIN, END, IMAGE, picture, prompt_of, write_vision

FAMILIES = ("qwen2_vl", "gemma3", "llava")
ONE = [BEGIN, IMAGE, END]
PICTURES = [picture(30, 50), picture(64, 41), picture(20, 70)]
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, logprobs=0)


@dataclass
class Run:
    """What an engine made of the prompts, and where it kept the tower."""

    answers: list[list[list[int]]]
    logprobs: np.ndarray  # of each answer
    embeddings: np.ndarray
    shares: dict[str, float]  # of each weight of the tower, what one device has
    places: list[int]  # patches that each program of the encoder takes on all devices


def run(folder: Path, family: str, **settings: Any) -> Run:
    prompts = [
        {
            "prompt_token_ids": prompt_of(family, [5, *ONE * len(pictures), 7]),
            "multi_modal_data": {"image": pictures},
        }
        for pictures in (PICTURES, PICTURES[1:2])
    ]
    llm = tiny_engine(folder, **settings)
    try:
        outputs = llm.generate(prompts, GREEDY)
        found = answers(outputs)
        completions = [one.outputs[0] for one in outputs]
        logprobs = np.array([one.cumulative_logprob for one in completions])
        runner = llm.engine.runners[0]
        loaded = runner.loaded
        shares = {
            name: np.prod(leaf.sharding.shard_shape(leaf.shape)) / leaf.size
            for name, leaf in zip(loaded.order.names, loaded.leaves, strict=True)
            if name.startswith("vision.") and name.endswith("weight")
        }
        known = loaded.programs.ledger.entries.values()
        entries = [one for one in known if one.features.part is Part.ENCODER]
        places = [one.bucket.prefill_tokens for one in entries]
        return Run(
            found, logprobs, np.array(runner._runner._companions[0]._encoders.rows), shares, places
        )
    finally:
        llm.shutdown()


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vision(tmp_path_factory.mktemp(family), family)


@pytest.fixture(scope="module")
def alone(family: str, folder: Path) -> Run:
    return run(folder, family)


@pytest.mark.parametrize("backend", ["auto", "xla"])
@pytest.mark.parametrize("devices", [2, 4])
def test_each_device_has_a_part_of_every_weight(
    family: str, folder: Path, alone: Run, devices: int, backend: str
) -> None:
    found = run(folder, family, tensor_parallel_size=devices, attention_backend=backend)
    assert_equal(found, alone)
    heads = min(devices, 2)  # of which the tower has two
    for layer in range(2):
        block = f"vision.blocks.{layer}"
        assert found.shares[f"{block}.qkv.weight"] == found.shares[f"{block}.out.weight"]
        assert found.shares[f"{block}.qkv.weight"] == 1 / heads
        assert found.shares[f"{block}.up.weight"] == 1 / devices
        assert found.shares[f"{block}.down.weight"] == 1 / devices
    assert found.places == alone.places


@pytest.mark.parametrize("backend", ["auto", "xla"])
def test_each_device_has_images_of_its_own(
    family: str, folder: Path, alone: Run, backend: str
) -> None:
    found = run(
        folder, family, tensor_parallel_size=4, attention_backend=backend,
        mm_encoder_tp_mode="data",
    )  # fmt: skip
    assert_equal(found, alone)
    assert set(found.shares.values()) == {1.0}
    assert found.places == [4 * 256]  # the smallest program, on each device


def test_loads_are_even() -> None:
    assert shared([], 2, 9) == []
    assert shared([3, 4, 5, 9, 1], 1, 9) == [[[0, 1]], [[2]], [[3]], [[4]]]
    assert shared([3, 4, 5, 9, 1], 2, 9) == [[[3], [2, 1]], [[0], [4]]]
    assert shared([1, 4, 4, 1], 4, 9) == [[[1], [2], [0], [3]]]


def test_what_cannot_be_shared_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"mm_encoder_tp_mode.*takes no images"):
        tiny_engine("demo", mm_encoder_tp_mode="data")
    with pytest.raises(
        ConfigError, match="mm_encoder_tp_mode='rows': expected one of 'weights', 'data'"
    ):
        tiny_engine(folder, mm_encoder_tp_mode="rows")
    with pytest.raises(UnsupportedFeature, match="cpu_offload_gb and mm_encoder_tp_mode='data'"):
        tiny_engine(folder, mm_encoder_tp_mode="data", cpu_offload_gb=1)


def assert_equal(found: Run, alone: Run) -> None:
    assert found.answers == alone.answers
    np.testing.assert_allclose(found.logprobs, alone.logprobs, atol=1e-4, rtol=1e-4)
    assert alone.embeddings.any(axis=1).sum() > 30
    np.testing.assert_allclose(found.embeddings, alone.embeddings, atol=1e-4, rtol=1e-4)
