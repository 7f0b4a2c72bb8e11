"""A model split over devices answers as it does on one, exchanging no more than it must."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import jengine
from jengine import Patch, SamplingParams, Steer
from jengine.errors import ConfigError
from jengine.models.language_model import LanguageModel
from jengine.models.parameter import named_parameters
from jengine.runner.variants.buckets import Slots
from jengine.runner.variants.features import Features
from jengine.runner.variants.parts import Part
from jengine.sampling.features import SamplingFeatures
from jengine.weights.abstract import with_values
from tests.api.engines import tiny_engine
from tests.models.parallel_family import (
    SETTINGS,
    arrays,
    assert_answers,
)
from tests.models.tiny_models import write_tiny_native
from tests.sharding.eight_devices.memory import shares_memory
from tests.sharding.eight_devices.same_answers import PROMPTS, run, same_in_every_way

FAMILIES = ["mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "olmo2", "gpt2", "mixtral"]
FAMILIES += ["qwen3_moe", "deepseek_v3", "gemma4"]


def split_engine(folder: Path, devices: int, **settings: Any) -> jengine.LLM:
    return tiny_engine(folder, tensor_parallel_size=devices, **settings)


@pytest.mark.parametrize(
    "devices", [4, pytest.param(2, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)]
)
def test_same_tokens_on_any_number_of_devices(
    folder: Path, on_one: list[Any], devices: int
) -> None:
    with split_engine(folder, devices) as llm:
        assert llm.mesh.devices.size == devices
        same_in_every_way(llm, on_one)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "devices"),
    [
        *((family, 4) for family in FAMILIES),
        ("llama", 2),
        ("gemma3", 2),
        ("gemma4", 2),
        ("mixtral", 2),
    ],
)
def test_every_family(tmp_path: Path, family: str, devices: int) -> None:
    folder = write_tiny_native(tmp_path, family)
    with tiny_engine(folder, max_model_len=256) as one:
        expected = run(one)
    with split_engine(folder, devices, max_model_len=256) as llm:
        assert run(llm) == expected


def test_a_family_with_its_own_body_and_weight_scheme(
    tmp_path: Path, own_model: LanguageModel
) -> None:
    """Prepared weights and attention sinks are sharded by their own logical axes."""
    model = own_model
    with jengine.LLM(tmp_path, tensor_parallel_size=4, **SETTINGS) as llm:
        assert_answers(llm, model)
        names, leaves = llm.engine.order.names, llm.engine.loaded.leaves
        prepared = dict(zip(names, leaves, strict=True))["layers.0.attention.out.turned"]
        assert prepared.addressable_shards[0].data.shape == (32, 1, 2, 8)
        for path, found in llm.engine.loaded.parameters().items():
            np.testing.assert_array_equal(np.asarray(found), arrays(model)[path])


def test_strict_mode_compiles_nothing_while_serving(folder: Path, on_one: list[Any]) -> None:
    with split_engine(folder, 4, strict=True, enforce_eager=False) as llm:
        assert run(llm) == on_one
        assert llm.stats().compiles_after_warm_up == 0


@pytest.mark.parametrize("prefill", [0, 256])
def test_what_devices_exchange(folder: Path, prefill: int) -> None:
    """Two sums a layer and one for the embedding, no logits."""
    with split_engine(folder, 4) as llm:
        programs = llm.engine.loaded.programs
        bucket = next(b for b in llm.engine.loaded.ladders.buckets() if b.prefill_tokens == prefill)
        compiled, _ = programs.compiler.compile(bucket, programs.tiers[0].of(Part.FORWARD))
        layers, hidden = len(llm.engine.model.layers), llm.engine.model.hidden_size
        caches = llm.engine.loaded.state.caches
    text = compiled.as_text()
    for kind in ("all-gather", "all-to-all", "collective-permute", "reduce-scatter"):
        assert f" {kind}(" not in text
    sums = re.findall(r"= [a-z0-9]+\[([0-9,]*)\]\S* all-reduce\(", text)
    large = [shape for shape in sums if shape.endswith(f",{hidden}")]
    assert len(large) == len(sums) == 2 * layers + 1
    memory = compiled.memory_analysis()
    own = sum(cache.addressable_shards[0].data.nbytes for cache in caches)
    assert memory.alias_size_in_bytes >= own
    cache_shape = ",".join(map(str, caches[0].addressable_shards[0].data.shape))
    assert f"[{cache_shape}]" in text
    assert not re.search(rf"\[{cache_shape}\]\S* copy\(", text)


COLLECTIVES = r" (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)\("


@pytest.mark.parametrize("groups", [1, 2])
def test_what_samplers_exchange(folder: Path, groups: int) -> None:
    """Each device's best, or the logits once: branches and loops of a sampler exchange nothing, so
    that devices cannot come to different collectives."""
    with split_engine(folder, 4, prefill_context_parallel_size=groups) as llm:
        compiler, rows = llm.engine.loaded.programs.compiler, 8
        texts = {
            str(sampling): compiler.compile(
                Slots(rows), Features(sampling=sampling, part=Part.SAMPLE)
            )[0].as_text()
            for sampling in (
                SamplingFeatures(),
                SamplingFeatures(random=True),
                SamplingFeatures(random=True, adjust=True, logprobs=20, own_ids=True),
            )
        }
    best, *whole = texts.values()
    assert set(re.findall(COLLECTIVES, best)) == {"all-reduce"}
    for shape in re.findall(r"= [a-z0-9]+\[([0-9,]*)\]\S* all-reduce\(", best):
        assert shape == str(rows)
    for text in whole:
        assert re.findall(COLLECTIVES, text) == ["all-gather"]


def test_each_device_holds_its_part(folder: Path) -> None:
    with split_engine(folder, 4) as llm:
        shardings = llm.param_shardings
        leaves = llm.engine.loaded.parameters()
        parts = {
            name: leaf.size // leaf.addressable_shards[0].data.size for name, leaf in leaves.items()
        }
        caches = llm.engine.loaded.state.caches
        assert caches[0].size // caches[0].addressable_shards[0].data.size == 2
    assert parts["embed.weight"] == parts["layers.0.mlp.down.weight"] == 4
    assert parts["layers.1.mlp.gate_up.weight"] == 4
    assert parts["layers.0.attention.qkv.weight"] == 2  # as many as there are heads to share
    assert parts["norm.weight"] == 1
    said = {line.split()[0]: line for line in str(shardings).splitlines()}
    assert said["embed.weight"].endswith("4 parts on 4 devices")
    assert said["layers.0-1.attention.qkv.weight"].endswith("2 parts on 4 devices")
    assert len(set(re.findall(r"part (\d)", shardings._repr_html_()))) == 4


@pytest.mark.slow
def test_a_mesh_of_ones_own(folder: Path, on_one: list[Any]) -> None:
    """Also a part of the devices, with arrays that lie there already and are not copied."""
    devices = jax.devices()[4:6]
    mesh = Mesh(np.array(devices), ("model",))
    with tiny_engine(folder, mesh=mesh, pack_weights=False) as llm:
        assert set(llm.mesh.devices.flat) == set(devices)
        assert run(llm) == on_one
        leaves = llm.engine.loaded.leaves
        names = [name for name, _ in named_parameters(llm.engine.declared)]
        moved = {
            name: jax.device_put(
                leaf, jax.sharding.NamedSharding(mesh, user_spec(leaf.sharding.spec))
            )
            for name, leaf in zip(names, leaves, strict=True)
        }
        assert llm.update_params(moved) == 1
        for name, leaf in zip(names, llm.engine.loaded.leaves, strict=True):
            assert shares_memory(moved[name], leaf), name
        assert run(llm) == on_one


def user_spec(spec: Any) -> jax.sharding.PartitionSpec:
    """The engine's spec in the words of a mesh with the one axis "model"."""
    return jax.sharding.PartitionSpec(*("model" if names else None for names in spec))


@pytest.mark.slow
def test_capture_is_whole(folder: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    captured = []
    for devices in (1, 4):
        with split_engine(folder, devices) as llm:
            output = llm.generate([PROMPTS[2]], params, capture=["layers.*.mlp", "norm"])[0]
            captured.append(output.captured)
    for name, one in captured[0].items():
        np.testing.assert_allclose(one, captured[1][name], atol=1e-4)


@pytest.mark.slow
def test_arrays_of_interventions_are_on_every_device(folder: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    vector = np.linspace(-1, 1, 32)
    found = []
    for devices in (1, 4):
        with split_engine(folder, devices) as llm:
            changes = {"layers.0.output": Patch(vector, 3), "layers.1.mlp": Steer(vector, 2.0)}
            (output,) = llm.generate([PROMPTS[2]], params, capture="norm", intervene=changes)
            assert output.captured is not None
            grid = llm.patch_grid(
                PROMPTS[2], {"layers.0.output": vector[None].repeat(9, 0)}, [1, 8]
            )
            found.append((output.captured["norm"], grid.hidden, llm.unembed(grid.hidden)))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.mark.slow
def test_orbax_from_four_devices_to_any_number(folder: Path, tmp_path: Path) -> None:
    with split_engine(folder, 4) as llm:
        llm.save(tmp_path / "saved", format="orbax")
        saved = [np.asarray(array) for array in llm.engine.loaded.parameters().values()]
    for devices in (1, 2, 8):
        with split_engine(tmp_path / "saved", devices, load_format="orbax") as llm:
            read = llm.engine.loaded.parameters().values()
            for before, leaf in zip(saved, read, strict=True):
                assert leaf.sharding.mesh.devices.size == devices
                assert np.array_equal(before.view(np.uint8), np.asarray(leaf).view(np.uint8))


@pytest.mark.slow
def test_safetensors_from_four_devices(folder: Path, tmp_path: Path, on_one: list[Any]) -> None:
    with split_engine(folder, 4) as llm:
        llm.save(tmp_path / "saved")
    with split_engine(tmp_path / "saved", 1) as llm:
        assert run(llm) == on_one


@pytest.mark.slow
def test_live_modules_are_split_too(folder: Path, on_one: list[Any]) -> None:
    with split_engine(folder, 1) as llm:
        model = with_values(llm.engine.declared, llm.engine.loaded.parameters())
        with tiny_engine(model, tensor_parallel_size=2) as other:
            assert run(other) == on_one


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tensor_parallel_size": 9}, "tensor_parallel_size=9: expected 1 to 8"),
        ({"tensor_parallel_size": 0}, "expected a positive integer"),
        ({"mesh": "tp"}, "mesh is a str; expected a jax.sharding.Mesh"),
        ({"mesh_axes": {"a": "tensor"}}, "mesh is a NoneType; expected a jax.sharding.Mesh"),
        (
            {"mesh": ((2,), ("a",)), "mesh_axes": {"b": "tensor"}},
            "names 'b'; this mesh has the axes",
        ),
        (
            {"mesh": ((2,), ("a",)), "mesh_axes": {"a": "data"}},
            "is 'data'; expected one of 'replica'",
        ),
        ({"mesh": ((4,), ("a",)), "tensor_parallel_size": 2}, "a mesh of 4 devices; give one"),
    ],
)
def test_bad_input(folder: Path, settings: dict[str, Any], message: str) -> None:
    mesh = settings.get("mesh")
    if isinstance(mesh, tuple):
        shape, names = mesh
        devices = np.array(jax.devices()[: np.prod(shape)]).reshape(shape)
        settings = {**settings, "mesh": Mesh(devices, names)}
    with pytest.raises(ConfigError, match=message):
        tiny_engine(folder, **settings)
