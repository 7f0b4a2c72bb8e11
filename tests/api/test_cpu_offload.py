"""`cpu_offload_gb`: layers in the host's memory make the same tokens, whatever else is done."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jengine
from jengine.assembly import device_side
from jengine.assembly.host_weights import offloaded, refuse_other_loops, with_layers_on_host
from jengine.config import ModelConfig
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.models.language_model import LanguageModel
from jengine.models.stages import stage_layout
from jengine.runner.loaded_model import LoadedModel
from jengine.weights.abstract import abstract_model
from jengine.weights.folder import read_model_config
from jengine.weights.stage_places import StagePlaces
from sharding.mesh import engine_mesh
from sharding.placement import HOST, Placement
from tests.api.engines import answers, random_prompts, tiny_engine
from tests.api.few_requests import PARAMS
from tests.api.few_requests import PROMPTS as MANY
from tests.lora.engines import GREEDY, SETTINGS, Setup, write_models
from tests.models.tiny_models import write_tiny_native

ONE_LAYER = 1e-6  # GiB
ALL = {"0", "1", "2", "3"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_native(
        tmp_path_factory.mktemp("llama"), "llama", num_hidden_layers=4, max_position_embeddings=1024
    )


@pytest.fixture
def offloads_on_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers stay in pinned memory of the host here too, as they do for GPUs."""

    def chosen(args: Any, config: ModelConfig, places: StagePlaces, matmuls: Any) -> StagePlaces:
        if not args.cpu_offload_gb:
            return places
        return offloaded(args.cpu_offload_gb, abstract_model(config), places, matmuls)

    monkeypatch.setattr(device_side, "with_layers_on_host", chosen)


def loaded(llm: jengine.LLM) -> LoadedModel:
    return llm.engine.loaded


def on_host(llm: jengine.LLM) -> set[str]:
    """The layers in the host's memory, where all their parameters are, and no other ones."""
    names, leaves = loaded(llm).order.names, loaded(llm).leaves
    kinds: dict[str, set[bool]] = {}
    for name, leaf in zip(names, leaves, strict=True):
        layer = name.split(".")[1] if name.startswith("layers.") else ""
        kinds.setdefault(layer, set()).add(leaf.sharding.memory_kind == HOST)
    assert all(len(found) == 1 for found in kinds.values())
    return {layer for layer, found in kinds.items() if found == {True}}


def places_of(folder: Path) -> StagePlaces:
    config = read_model_config(folder)
    mesh = engine_mesh(np.array(jax.devices()[:1]).reshape(1, 1), (2,))
    return StagePlaces(Placement(mesh), stage_layout(config, 1))


def test_a_cpu_says_that_there_is_nothing_to_offload(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    args, places = jengine.EngineArgs(folder, cpu_offload_gb=4), places_of(folder)
    config = read_model_config(folder)
    with caplog.at_level(logging.WARNING):
        assert with_layers_on_host(args.groups.cache, config, places, None) is places
    assert "cpu_offload_gb=4" in caplog.text and "nothing to offload" in caplog.text
    caplog.clear()
    assert (
        with_layers_on_host(jengine.EngineArgs(folder).groups.cache, config, places, None) is places
    )
    assert not caplog.text


def test_bad_settings_are_refused_by_name(folder: Path) -> None:
    for given in (-1, "much", float("nan"), True):
        with pytest.raises(ConfigError, match=r"cpu_offload_gb=.*expected (a number|GiB)"):
            jengine.EngineArgs(folder, cpu_offload_gb=given)
    for other in (
        {"num_scheduler_steps": 4},
        {"enable_eplb": True, "enable_expert_parallel": True},
    ):
        with pytest.raises(UnsupportedFeature, match=f"cpu_offload_gb with {next(iter(other))}"):
            jengine.EngineArgs(folder, cpu_offload_gb=1, **other)
    places = places_of(folder)
    with pytest.raises(UnsupportedFeature, match="cpu_offload_gb with a LanguageModel"):
        refuse_other_loops(LanguageModel(), places)
    stages = StagePlaces(places.whole, stage_layout(read_model_config(folder), 2))
    with pytest.raises(UnsupportedFeature, match="cpu_offload_gb with pipeline_parallel_size"):
        refuse_other_loops(abstract_model(read_model_config(folder)), stages)


@pytest.mark.slow
@pytest.mark.usefixtures("offloads_on_cpus")
@pytest.mark.parametrize(
    ("settings", "gib", "layers"),
    [
        ({}, ONE_LAYER, {"3"}),
        ({"pack_weights": False}, 1, ALL),
        ({"quantization": "int4", "attention_backend": "xla"}, 1, ALL),
    ],
    ids=["one layer", "all layers", "few bits"],
)
def test_same_answers_awake_asleep_and_updated(
    folder: Path, settings: dict[str, Any], gib: float, layers: set[str]
) -> None:
    with tiny_engine(folder, **settings) as llm:
        expected = answers(llm.generate(MANY, PARAMS))
        values = {path: np.asarray(value) for path, value in loaded(llm).parameters().items()}
    with tiny_engine(folder, cpu_offload_gb=gib, enable_sleep_mode=True, **settings) as llm:

        def check(found: list[Any] | None = expected) -> None:
            assert on_host(llm) == layers
            assert (answers(llm.generate(MANY, PARAMS)) == expected) == (found is expected)

        check()
        on_device = [leaf for leaf in loaded(llm).leaves if leaf.sharding.memory_kind != HOST]
        (told,) = llm.call_workers("memory")
        assert told.weights == sum(leaf.nbytes for leaf in on_device) > 0
        for path, value in loaded(llm).parameters().items():
            np.testing.assert_array_equal(np.asarray(value), values[path])
        llm.sleep(1)
        llm.wake_up()
        check()
        llm.update_params({path: value * 0 for path, value in values.items()})
        check(None)
        llm.sleep(2)
        llm.reload_weights()
        llm.wake_up()
        check()


@pytest.mark.slow
@pytest.mark.usefixtures("offloads_on_cpus")
def test_adapters(tmp_path: Path) -> None:
    models = write_models(tmp_path)
    names: list[str | None] = ["all", None, "queries", "mlp"]
    found = []
    for gib in (0, 1):
        with tiny_engine(models.base, **SETTINGS | {"max_loras": 3}, cpu_offload_gb=gib) as llm:
            assert bool(on_host(llm)) == bool(gib)
            found.append(answers(Setup(llm, models).answer(names)))
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.usefixtures("offloads_on_cpus")
def test_drafts_and_live_parameters(folder: Path) -> None:
    drafts = {"method": "ngram", "num_speculative_tokens": 3}
    settings: dict[str, Any] = {"compilation_config": {"decode_rows": [32]}}
    prompts = [[5, 6, 7, 8] * 10, *random_prompts(30)]
    with tiny_engine(folder, **settings) as llm:
        expected = answers(llm.generate(prompts, GREEDY))
        live = loaded(llm).parameters()
    settings |= {"speculative_config": drafts, "params": live, "cpu_offload_gb": 1}
    with tiny_engine(folder, **settings) as llm:
        assert on_host(llm) == ALL
        assert answers(llm.generate(prompts, GREEDY)) == expected
