"""`executor=`: what it may be, what is refused, and an executor of somebody else's."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jengine
from jengine import SamplingParams
from jengine.assembly.settings.args import EngineArgs
from jengine.errors import ConfigError, EngineDead, RequestError, UnsupportedFeature
from jengine.executor.choice import OWN_PROCESSES, STARTING, checked_executor, starting_executor
from tests.api.engines import answers, random_prompts, tiny_engine
from tests.executor.plugin import VOCAB, ScriptedWorkers
from tests.executor.scripted import scripted_tokens
from tests.models.tiny_models import write_tiny_native

PLUGIN = "tests.executor.plugin"
PARAMS = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_native(tmp_path_factory.mktemp("choice"), "llama", num_hidden_layers=1)


def scripted_engine(folder: Path, **settings: Any) -> jengine.LLM:
    settings = {"executor": f"{PLUGIN}:ScriptedWorkers", **settings}
    return jengine.LLM(folder, skip_tokenizer_init=True, **settings)


@pytest.mark.parametrize("value", ["rays", "a:b:c", "a.b", ":C", "a:", "a b:C", "", None, 3])
def test_what_cannot_mean_an_executor_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"executor=.*expected one of 'auto', 'local'"):
        checked_executor(value)


def test_the_nearest_name_is_suggested() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'multihost'"):
        EngineArgs.checked("LLM", model="x", executor="multihosts")


def test_every_name_is_known() -> None:
    for value in (*OWN_PROCESSES, *STARTING, "package.module:Class"):
        assert EngineArgs.checked("LLM", model="x", executor=value).executor == value
    named = EngineArgs.checked("LLM", model="x", distributed_executor_backend="ray")
    assert named.executor == "ray"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_package:Class", "cannot be imported: No module named 'no_such_package'"),
        (f"{PLUGIN}:Nobody", "has no attribute .Nobody."),
        (f"{PLUGIN}:NOT_A_CLASS", "NOT_A_CLASS' is not a class"),
        (f"{PLUGIN}:HalfAnExecutor", "lacks start, update_weights, call_workers, health, shutdown"),
    ],
)
def test_import_paths_are_checked(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        starting_executor(path)


def test_ray_that_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for module in ("executor", "actor"):
        monkeypatch.delitem(sys.modules, f"jengine.executor.ray.{module}", raising=False)
    with pytest.raises(ConfigError, match=r"Install: pip install 'jengine\[ray\]'"):
        starting_executor("ray")


def test_executors_of_this_process_have_no_options(folder: Path) -> None:
    with pytest.raises(ConfigError, match="executor_options with executor='auto'"):
        tiny_engine(folder, executor_options={"workers": 2})


def test_multihost_needs_several_processes(folder: Path) -> None:
    with pytest.raises(ConfigError, match="executor='multihost', but all devices are of this"):
        tiny_engine(folder, executor="multihost", max_model_len=128)


def test_local_answers_for_itself(folder: Path) -> None:
    with tiny_engine(folder, "greedy", executor="local", max_model_len=128) as llm:
        prompts = random_prompts(3, 20)
        first = answers(llm.generate(prompts, PARAMS))
        before = llm.health()[0].step
        (own,) = llm.health(probe=True)
        assert (own.rank, own.step, own.silent) == (0, before + 1, 0.0)
        assert answers(llm.generate(prompts, PARAMS)) == first  # the empty step left nothing behind
        (memory,) = llm.call_workers("memory")
        parts: dict[str, int] = {}
        for part in llm.memory().parts:
            parts[part.name] = parts.get(part.name, 0) + part.bytes
        assert memory.weights == parts["weights"]
        assert memory.cache == parts["cache"]
        assert memory.row_state == parts["row state"]
        assert (memory.platform, memory.devices) == ("cpu", 1)
        (programs,) = llm.call_workers("programs")
        assert programs.programs == len(llm.ledger.entries) == llm.stats().programs
        stream = llm.stream(prompts, PARAMS)
        next(stream)
        with pytest.raises(RequestError, match="while requests run"):
            llm.health(probe=True)
        stream.close()
    with pytest.raises(EngineDead):
        llm.health()


def test_only_what_is_listed_can_be_called(folder: Path, tmp_path: Path) -> None:
    with tiny_engine(folder, "greedy", max_model_len=128) as llm:
        with pytest.raises(RequestError, match=r"workers answer memory, .*Did you mean 'memory'"):
            llm.call_workers("memroy")
        with pytest.raises(RequestError, match="unknown field `folder`"):
            llm.call_workers("memory", folder="x")
        with pytest.raises(RequestError, match="Expected `str`, got `int`"):
            llm.call_workers("start_profile", folder=5)
        with pytest.raises(RequestError, match="missing required field `folder`"):
            llm.call_workers("start_profile")
        with pytest.raises(
            RequestError, match=r"'stop_profile'.* failed in worker 0: RuntimeError"
        ):
            llm.call_workers("stop_profile")  # none was begun
        assert llm.call_workers("start_profile", folder=str(tmp_path)) == [None]
        assert llm.call_workers("stop_profile") == [None]
        assert list(tmp_path.rglob("*.xplane.pb"))


def test_an_executor_of_somebody_elses(folder: Path) -> None:
    prompts = random_prompts(3, 20, 40)
    with scripted_engine(folder, executor_options={"more": 1}, seed=3) as llm:
        outputs = llm.generate(prompts, PARAMS)
        assert answers(outputs) == [[scripted_tokens(prompt, 6, VOCAB)] for prompt in prompts]
        (own,) = llm.health(probe=True)
        assert own.where == "on paper"
        assert (llm.stats().programs, llm.stats().compiles_after_warm_up) == (3, 1)
        workers = ScriptedWorkers.started[-1]
        assert workers.job.options == {"more": 1}
        assert workers.job.settings["model"] == str(folder)
        assert workers.job.settings["seed"] == 3
        assert workers.job.settings["dtype"] == "float32"
        assert llm.max_model_len == 64
    assert workers.shutdowns == 1


async def answered(engine: jengine.AsyncLLM, prompt: list[int]) -> list[int]:
    last = None
    async for output in engine.generate(prompt, PARAMS):
        last = output
    assert last is not None
    return last.outputs[0].token_ids


@pytest.mark.asyncio
async def test_asyncio_schedules_for_workers_as_well(folder: Path) -> None:
    settings = {"executor": f"{PLUGIN}:ScriptedWorkers", "skip_tokenizer_init": True}
    engine = jengine.AsyncLLM(folder, **settings)
    prompts = random_prompts(5, 30)
    found = await asyncio.gather(*(answered(engine, prompt) for prompt in prompts))
    assert found == [scripted_tokens(prompt, 6, VOCAB) for prompt in prompts]
    await engine.shutdown()
    assert ScriptedWorkers.started[-1].shutdowns == 1


def test_what_lies_in_workers_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    with scripted_engine(folder) as llm:
        for action in (
            lambda: llm.memory(),
            lambda: llm.mesh,
            lambda: llm.ledger,
            lambda: llm.param_shardings,
            lambda: llm.update_params({}),
            lambda: llm.save(tmp_path / "copy"),
            lambda: llm.generate([[5, 6]], PARAMS, capture="norm"),
        ):
            with pytest.raises(UnsupportedFeature, match="in other processes"):
                action()
        assert llm.generate([[5, 6]], PARAMS)[0].finished


def test_what_cannot_travel_is_refused(folder: Path) -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
    with pytest.raises(ConfigError, match=r"with mesh=.*leave mesh out"):
        scripted_engine(folder, mesh=mesh)
    with pytest.raises(ConfigError, match="a setting cannot be sent to workers"):
        scripted_engine(folder, compilation_config={"pages": object()})
    with pytest.raises(ConfigError, match=r"with params=.*leave params out"):
        scripted_engine(folder, params={})
    with pytest.raises(UnsupportedFeature, match="replicas are in processes of their own"):
        scripted_engine(folder, data_parallel_size=2)
    with pytest.raises(UnsupportedFeature, match="pipeline_parallel_size=2: stages over workers"):
        scripted_engine(folder, pipeline_parallel_size=2)


def test_a_start_that_fails(folder: Path) -> None:
    with pytest.raises(ConfigError, match="told to fail"):
        scripted_engine(folder, executor_options={"fail": True})
    with pytest.raises(ConfigError, match="expected an executor with a Capacity"):
        scripted_engine(folder, executor=f"{PLUGIN}:WithoutCapacity")
    assert ScriptedWorkers.started[-1].shutdowns == 1
