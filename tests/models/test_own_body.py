"""A family with its own body runs in the engine; declared and prepared weights stay apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import jengine
from jengine import LLM
from jengine.errors import UnsupportedFeature
from jengine.models import registry
from jengine.models.stages import stage_layout
from jengine.runner.step.leaves import LeafOrder, first_layers
from jengine.weights.abstract import abstract_model
from jengine.weights.dummy import dummy_model
from jengine.weights.safetensors_io import load_model, save_pretrained
from jengine.weights.stage_places import StagePlaces
from sharding.mesh import one_device_mesh
from sharding.placement import Placement
from tests.models.parallel_family import (
    ARCHITECTURE,
    SETTINGS,
    ParallelFamily,
    arrays,
    assert_answers,
    model_of,
)
from tests.models.tiny_models import tiny_settings


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_REGISTERED", {})
    jengine.register_model(ParallelFamily())
    yield


@pytest.mark.slow
def test_it_answers_is_updated_and_saved_by_its_declared_parameters(tmp_path: Path) -> None:
    first, second = model_of(1), model_of(2)
    save_pretrained(first, tmp_path / "first")
    with LLM(tmp_path / "first", **SETTINGS) as llm:
        assert_answers(llm, first)
        qkv = llm.engine.loaded.order.names.index("layers.0.attention.qkv.turned")
        assert llm.engine.loaded.leaves[qkv].shape == (2, 4, 8, 32), "the step takes prepared ones"
        for path, found in llm.engine.loaded.parameters().items():
            np.testing.assert_array_equal(np.asarray(found), arrays(first)[path])

        llm.update_params(second)
        assert_answers(llm, second)
        llm.save(tmp_path / "second")
    again = arrays(load_model(tmp_path / "second"))
    assert {path: array.tolist() for path, array in again.items()} == {
        path: array.tolist() for path, array in arrays(second).items()
    }
    written = json.loads((tmp_path / "second" / "config.json").read_text())
    assert written["architectures"] == [ARCHITECTURE]


def test_a_body_of_a_user_is_traced_anew_for_each_engine() -> None:
    """It may call functions that were defined anew since an equal engine was built."""
    given = tiny_settings("llama", architectures=["LlamaForCausalLM"])
    own = dummy_model(registry.model_config(given))
    places = StagePlaces(Placement(one_device_mesh()), stage_layout(own.config, 1))
    for model, is_shared in ((model_of(1), False), (own, True)):
        orders = [LeafOrder(model, places) for _ in range(2)]
        assert (orders[0].rebuild is orders[1].rebuild) is is_shared


def test_stages_are_for_the_shared_decoder() -> None:
    with pytest.raises(UnsupportedFeature, match="a Parallel: stages are built for"):
        first_layers(model_of(1), 1)
    given = tiny_settings("zamba2", architectures=["Zamba2ForCausalLM"])
    shared = abstract_model(registry.model_config(given))
    with pytest.raises(UnsupportedFeature, match="a Zamba2Decoder: stages are built for"):
        first_layers(shared, 1)
