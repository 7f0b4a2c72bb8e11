"""`jengine doctor`: what counts as a problem, and whether its advice about a model holds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.sizes.schedule_sizes import schedule_config
from jengine.assembly.sizes.step_sizes import runner_config
from jengine.capacity.device_memory import gigabytes
from jengine.cli.checks import environment, kernels, storage, versions
from jengine.cli.checks.model import MemorySizes, check_fit, measure
from jengine.errors import ConfigError
from jengine.runner.memory.cache_size import BlockDemand, blocks_for
from jengine.runner.step.group_arrays import block_bytes
from jengine.weights.folder import read_model_config
from pallas_kernels.choice import cpu_problem
from sharding.jax_settings import OWN
from tests.cli.fake_llm import FakeLLM, run
from tests.models.tiny_models import write_tiny_native


def levels(findings: list[Any]) -> list[str]:
    return [finding.level for finding in findings]


def test_versions_that_do_not_belong_together() -> None:
    good = {"jax": "0.10.2", "jaxlib": "0.10.2"}
    assert levels(versions.needed(good)) == ["OK"]
    [_, other] = versions.needed({**good, "jaxlib": "0.10.1"})
    assert other.level == "problem" and "pip install jaxlib==0.10.2" in other.text
    [_, missing] = versions.needed({**good, "flax": None})
    assert missing.level == "problem" and "pip install flax" in missing.text


def test_plugins_must_be_of_jaxlibs_version() -> None:
    found = versions.plugins(
        {"jaxlib": "0.10.2", "jax-cuda12-plugin": "0.10.2", "jax-cuda12-pjrt": "0.10.1"}
    )
    assert levels(found) == ["problem", "OK"]
    assert "pip install jax-cuda12-pjrt==0.10.2" in found[0].text


@pytest.mark.skipif(cpu_problem() is not None, reason=str(cpu_problem()))
@pytest.mark.parametrize(("seconds", "how"), [(0.1, "compiled earlier"), (4.2, "in 4 s")])
def test_kernels_are_described_by_instructions_and_compiler(seconds: float, how: str) -> None:
    found = kernels.described(None, seconds)
    assert found.level == "OK" and how in found.text
    assert any(name in found.text for name in ("AVX", "NEON", "basic"))


def test_a_cpu_without_its_kernels_is_told_what_to_install() -> None:
    found = kernels.described("there is no C++ compiler. Install g++.", 0.0)
    assert found.level == "note" and "Install g++" in found.text


def test_settings_of_jax_that_do_not_reach_the_engine() -> None:
    (found,) = environment.settings({"jax_enable_x64": True})
    assert found.level == "note"
    assert found.text == "jax_enable_x64=True: for your own code; the engine runs with False"


def test_environment_variables_that_matter() -> None:
    assert levels(environment.findings({"PATH": "/bin"})) == ["OK"]
    found = environment.findings({"JAX_PLATFORMS": "cpu", "LD_LIBRARY_PATH": "/usr/local/cuda/lib"})
    assert levels(found) == ["note", "note"]
    assert "JAX_PLATFORMS=cpu" in found[0].text


def test_every_setting_of_jax_that_is_set_is_named() -> None:
    for name in jax.config.values.keys() - {"jax_transfer_guard"}:
        variable, meets = name.upper(), name in OWN  # of those only values that differ are named
        found = [one.text for one in environment.findings({variable: "1"})]
        assert found[0].startswith(f"{variable}=1: ") is not meets
        if meets:
            (one,) = environment.settings({name: "other"})
            assert one.text.startswith(f"{name}=other: ")


def test_settings_of_jax_come_from_variables() -> None:
    script = "from jengine.cli.checks import environment as e; print(*(f.text for f in e.check()))"
    given = {"JAX_TRANSFER_GUARD": "log", "JAX_ENABLE_X64": "1", "JAX_RANDOM_SEED_OFFSET": "3"}
    surroundings = {**os.environ, **given}
    found = subprocess.check_output([sys.executable, "-c", script], env=surroundings, text=True)
    assert "jax_transfer_guard_host_to_device=log" in found and "jax_enable_x64=True" in found
    assert "JAX_RANDOM_SEED_OFFSET=3: a setting" in found and "JAX_ENABLE_X64=" not in found


def test_a_compile_cache_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    private = tmp_path / "cache"
    assert storage.compile_cache(private).level == "OK"
    (private / "program").write_bytes(b"12345")
    assert storage.compile_cache(private).figures["bytes"] == 5
    private.chmod(0o777)
    found = storage.compile_cache(private)
    assert found.level == "note" and "chmod 700" in found.text


def test_a_demo_model_that_is_not_there(tmp_path: Path) -> None:
    assert storage.demo_model(tmp_path).level == "note"
    for name in storage.DEMO_FILES:
        (tmp_path / name).write_text("12")
    assert "6 bytes" in storage.demo_model(tmp_path).text


@pytest.mark.parametrize(
    ("count", "text"), [(12, "12 bytes"), (1500, "1.5 kB"), (2e6, "2.0 MB"), (3.25e9, "3.2 GB")]
)
def test_bytes_for_people(count: float, text: str) -> None:
    assert gigabytes(count) == text


def test_this_machine_works() -> None:
    result = run(FakeLLM(), "doctor")
    assert result.status == 0, result.out
    subjects = {line.split()[1] for line in result.out.split("\n\n")[0].splitlines()}
    assert {"versions", "devices", "memory", "environment"} <= subjects
    assert result.out.splitlines()[-1].startswith("Next, type: jengine ")


def test_json() -> None:
    report = json.loads(run(FakeLLM(), "doctor", "--json").out)
    assert report["working"] is True
    assert {"level", "subject", "text", "figures"} == set(report["findings"][0])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_native(tmp_path_factory.mktemp("tiny"), "mistral")


def test_a_model_without_a_tokenizer_is_a_problem(tiny: Path) -> None:
    result = run(FakeLLM(), "doctor", str(tiny))
    assert result.status == 1
    assert "has no tokenizer" in result.out
    assert f"then type: jengine doctor {tiny}" in result.out.splitlines()[-1]


def test_a_model_without_weights_is_a_problem(tiny: Path, tmp_path: Path) -> None:
    shutil.copy(tiny / "config.json", tmp_path)
    report = json.loads(run(FakeLLM(), "doctor", str(tmp_path), "--json").out)
    found = {finding["subject"]: finding for finding in report["findings"]}
    assert found["weights"]["level"] == "problem"
    assert found["model"]["figures"]["parameter_bytes"] > 0


def test_weights_that_are_not_finite_are_named(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path, dirs_exist_ok=True)
    for broken, level in ((False, "OK"), (True, "problem")):
        if broken:
            tensors = dict(load_file(tmp_path / "model.safetensors"))
            tensors["model.norm.weight"] = tensors["model.norm.weight"].copy()
            tensors["model.norm.weight"][:2] = np.nan, np.inf
            save_file(tensors, tmp_path / "model.safetensors")
        result = run(FakeLLM(), "doctor", str(tmp_path), "--check-weights", "--json")
        [found] = [one for one in json.loads(result.out)["findings"] if one["subject"] == "values"]
        assert found["level"] == level
    assert found["figures"]["not_finite"] == {"model.norm.weight": 2}
    assert "model.norm.weight (2)" in found["text"] and result.status == 1


def test_a_folder_that_is_not_there_is_a_problem() -> None:
    result = run(FakeLLM(), "doctor", "no/such/folder")
    assert result.status == 1
    assert "not an existing folder" in result.out


def sizes_of(folder: Path, **settings: Any) -> MemorySizes:
    args = EngineArgs.checked("LLM", model=str(folder), **settings)
    return measure(args.groups, read_model_config(folder))


def test_rounded_weights_need_less(tiny: Path) -> None:
    """Tables and head stay plain."""
    words = ["doctor", str(tiny), "--json"]
    sizes = []
    for more in ([], ["--quantization", "int8"]):
        report = json.loads(run(FakeLLM(), *words, *more).out)
        [model] = [one for one in report["findings"] if one["subject"] == "model"]
        sizes.append(model["figures"]["parameter_bytes"])
    assert 0.25 * sizes[0] < sizes[1] < 0.7 * sizes[0]


def test_plenty_of_memory_needs_no_flags(tiny: Path) -> None:
    [found], settings = check_fit(sizes_of(tiny))
    assert (found.level, settings) == ("OK", {})
    assert found.figures["max_model_len"] == 512


def test_little_memory_gives_settings_that_the_engine_accepts(tiny: Path) -> None:
    given = {"kv_cache_memory_bytes": 60_000, "max_num_batched_tokens": 32}
    sizes = sizes_of(tiny, **given)
    [found], settings = check_fit(sizes)
    assert found.level == "note"
    assert settings["max_num_seqs"] < sizes.schedule.max_num_seqs
    args = EngineArgs.checked("LLM", model=str(tiny), **given, **settings)
    assert engine_takes(args, tiny)


def test_the_longest_context_is_the_engines_limit(tmp_path: Path) -> None:
    write_tiny_native(tmp_path, "llama")
    given = {"kv_cache_memory_bytes": 60_000, "max_num_batched_tokens": 32}
    longest = sizes_of(tmp_path, **given).longest
    assert 16 < longest < 512
    for length, fits in ((longest, True), (longest + 1, False)):
        args = EngineArgs.checked("LLM", model=str(tmp_path), max_model_len=length, **given)
        assert engine_takes(args, tmp_path) is fits


def test_no_memory_at_all_is_a_problem(tiny: Path) -> None:
    [found], settings = check_fit(sizes_of(tiny, kv_cache_memory_bytes=10))
    assert (found.level, settings) == ("problem", {})
    assert found.figures["bytes_missing"] > 0


def engine_takes(args: EngineArgs, folder: Path) -> bool:
    """Whether the engine's own sizing finds room for a request as long as the context."""
    config = read_model_config(folder)
    wanted = runner_config(args.groups, config, schedule_config(args.groups, config))
    demands = [
        BlockDemand(group, block_bytes(group, wanted.shapes.block_size, wanted.cache_dtype), *need)
        for group, need in zip(config.groups, wanted.demands, strict=True)
    ]
    try:
        blocks_for(demands, int(args.kv_cache_memory_bytes or 0))
    except ConfigError:
        return False
    return True


NO_DEVICE = """
from jengine import LLM
from jengine.cli.main import main
from jengine.errors import ConfigError
assert main(["doctor", "demo"]) == 1
try:
    LLM("demo", skip_tokenizer_init=True)
except ConfigError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_platform_that_is_not_there_is_explained() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_DEVICE],
        env={**os.environ, "JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [line for line in done.stdout.splitlines() if "JAX cannot start" in line]
    assert len(found) == 3  # of the devices, of the model, and of LLM
    for line in found:
        assert "JAX_PLATFORMS=cuda" in line and "set it to cpu" in line and "jax[cuda12]" in line
