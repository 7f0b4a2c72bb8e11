"""Adapters on several devices: sharded as the weights that they are added to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jengine.errors import UnsupportedFeature
from tests.api.engines import tiny_engine
from tests.lora.engines import SETTINGS, Models, Setup, check, write_models
from tests.models.tiny_models import write_tiny_native

NAMES: list[str | None] = ["all", None, "queries", "mlp"]
LORA: dict[str, Any] = {**SETTINGS, "max_loras": 3}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return write_models(tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def on_one(models: Models) -> list[Any]:
    """The answers of one device, which tests/lora compares with merged models."""
    with tiny_engine(models.base, **LORA) as llm:
        return Setup(llm, models).answer(NAMES)


@pytest.mark.parametrize(
    "settings",
    [
        {"tensor_parallel_size": 2},
        pytest.param(
            {"tensor_parallel_size": 2, "attention_backend": "xla"}, marks=pytest.mark.slow
        ),
        pytest.param({"data_parallel_size": 2, "tensor_parallel_size": 2}, marks=pytest.mark.slow),
    ],
)
def test_same_answers_as_on_one_device(
    models: Models, on_one: list[Any], settings: dict[str, Any]
) -> None:
    with tiny_engine(models.base, **LORA, **settings) as llm:
        outputs = Setup(llm, models).answer(NAMES)
        stacks = llm.engine.loaded.adapters
        assert stacks is not None
        down = dict(zip(stacks.weights, stacks.leaves[::2], strict=True))
        assert down["layers.0.mlp.down"].addressable_shards[0].data.shape[-1] == 24
    for output, name, truth in zip(outputs, NAMES, on_one, strict=True):
        check([output], [name], {name: [truth]})


def test_pipelines_refuse_adapters_by_name(tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, "llama")
    with pytest.raises(UnsupportedFeature, match="enable_lora=True with 2 pipeline stages"):
        tiny_engine(folder, **LORA, pipeline_parallel_size=2)
