"""An engine whose core runs in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from jengine import LLM, AsyncLLM, SamplingParams
from jengine.assembly.build import build_engine
from jengine.assembly.processes.deployment import Deployment
from jengine.assembly.processes.elastic import scale_replicas
from jengine.assembly.processes.engine_process import engine_over
from jengine.assembly.progress import progress_factory
from jengine.assembly.settings.args import EngineArgs
from jengine.errors import (
    CheckpointError,
    ConfigError,
    EngineAsleep,
    EngineDead,
    RequestError,
    UnsupportedFeature,
)
from tests.api.engines import SMALL_DEMO
from tests.engine.process.cores import child_core, eventually
from tests.engine.scripted import told

ROOT = Path(__file__).parent.parent.parent
FRONT = """
import asyncio, sys, threading
from jengine.api.async_requests import AsyncRequests
from jengine.api.front import Front
from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.processes.engine_process import start_engine_process
from jengine.errors import ConfigError
from tests.executor.scripted import scripted_tokens
from jengine.sampling_params import SamplingParams

VOCAB = 97
PLUGIN = "tests.executor.plugin:ScriptedWorkers"
args = dict(model="demo", executor=PLUGIN, override_generation_config={"temperature": 0.5})
try:
    start_engine_process(EngineArgs(**args, executor_options={"fail": True}))
except ConfigError as error:
    assert str(error) == "told to fail", error
else:
    raise AssertionError("it must fail")

engine = start_engine_process(EngineArgs(**args))
front, requests = Front("test", engine), AsyncRequests(engine.session)
assert front.default_params().temperature == 0.5


async def main():
    ids = front.chat_prompts([{"role": "user", "content": "Hi"}], {
        "chat_template": "{{ messages[0].content }}"})[0]["prompt_token_ids"]
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    prompts = [[5, 6, 7], [8, 9], [number % VOCAB for number in ids]]
    answers = [
        requests.stream(lambda reader, one=one: engine.session.submit(one, params, reader=reader))
        for one in prompts
    ]
    found = [[output async for output in answer][-1] for answer in answers]
    for prompt, output in zip(prompts, found):
        assert output.outputs[0].token_ids == scripted_tokens(prompt, 6, VOCAB), output
    names = [thread.name for thread in threading.enumerate()]
    assert "jengine-step_0" in names and "jengine-output_0" not in names, names
    assert front.stats().programs == 3 and front.health()[0].where == "on paper"


asyncio.run(main())
requests.shutdown()
print([name for name in ("jax", "flax", "orbax") if name in sys.modules])
"""


def test_the_server_imports_no_jax() -> None:
    code = (
        "import sys, jengine.cli.serving.one_process; "
        "print([name for name in ('jax', 'flax', 'orbax', 'torch') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_the_front_of_an_engine_process_imports_no_jax() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FRONT],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


# --- AsyncLLM over a core in another process, which here is scripted ------------------------------

PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)
LONG = SamplingParams(max_tokens=900, ignore_eos=True)


@asynccontextmanager
async def engine(**settings: object) -> AsyncIterator[AsyncLLM]:
    with child_core(**settings) as client:
        args = EngineArgs("demo", skip_tokenizer_init=True, multiprocess=True)
        found = AsyncLLM.over(engine_over(Deployment(args, Path("demo")), client, None, 60))
        try:
            yield found
        finally:
            await found.shutdown()


async def read(stream: Any) -> list[int]:
    return [output async for output in stream][-1].outputs[0].token_ids


@pytest.mark.asyncio
async def test_requests_are_answered_aborted_and_counted() -> None:
    async with engine(step_seconds=0.002) as llm:
        prompts = [[number + 3, 5] for number in range(20)]
        answers = [llm.generate(prompt, PARAMS) for prompt in prompts]
        found = await asyncio.gather(*map(read, answers))
        assert found == [told(prompt, 12) for prompt in prompts]

        left = llm.generate([7, 8], LONG)
        await anext(left)
        await left.aclose()
        ended = llm.generate([7, 9], LONG, "x")
        await anext(ended)
        await llm.abort("x")
        assert [output async for output in ended][-1].outputs[0].finish_reason == "abort"
        stats = await llm.stats()
        assert (stats.running, stats.waiting, stats.programs) == (0, 0, 3)
        assert (await llm.health())[0].where == "script"
        await llm.wait_for_requests_to_drain(10)
        assert llm.is_running and await llm.reset_prefix_cache()
        assert "cpu in another process" in repr(llm)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_generation_pauses_in_the_core() -> None:
    async with engine(step_seconds=0.002) as llm:
        stream = llm.generate([5, 6], LONG)
        first = await anext(stream)
        await llm.pause_generation(mode="keep", clear_cache=False)
        client = llm.engine.client
        steps = await asyncio.to_thread(settled_steps, client)
        later = asyncio.create_task(read(llm.generate([8], PARAMS)))
        await asyncio.sleep(0.1)
        assert settled_steps(client) == steps and not later.done()
        await llm.resume_generation()
        assert await later == told([8], 12)
        assert await read(stream) == told([5, 6], 900)
        assert first.outputs[0].token_ids == told([5, 6], len(first.outputs[0].token_ids))

        open_one = asyncio.create_task(read(llm.generate([9], LONG)))
        await asyncio.sleep(0.05)
        await llm.pause_generation(mode="abort")
        assert len(await open_one) < 900
        await llm.resume_generation()


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_core_sleeps_and_wakes() -> None:
    params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    llm = AsyncLLM("demo", multiprocess=True, enable_sleep_mode=True, **SMALL_DEMO)
    async with llm:
        expected = await read(llm.generate("Once upon", params))
        stream = llm.generate("Once upon", params)
        await anext(stream)
        await llm.sleep(1, "keep")
        (memory,) = await llm.call_workers("memory")
        assert memory.weights == memory.cache == 0 and await llm.is_sleeping()
        later = asyncio.create_task(read(llm.generate("Once upon", params)))
        with pytest.raises(EngineAsleep, match="wake_up"):
            await llm.resume_generation()
        assert await llm.wake_up()
        assert await read(stream) == await later == expected
        await llm.sleep(2)
        assert not await llm.wake_up() and await llm.is_sleeping()
        await llm.collective_rpc("reload_weights")
        assert await llm.wake_up() and await read(llm.generate("Once upon", params)) == expected


def settled_steps(client: Any) -> int:
    """The steps that a paused core has run, once it has said so."""
    eventually(lambda: client.state().paused)
    return client.state().steps


@pytest.mark.asyncio
@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
@pytest.mark.slow
async def test_every_reader_learns_that_the_core_has_died(paused: bool) -> None:
    async with engine(step_seconds=0.005) as llm:
        streams = [llm.generate([number], LONG) for number in range(3, 7)]
        readers = [asyncio.create_task(read(stream)) for stream in streams]
        await asyncio.sleep(0.1)
        if paused:
            await llm.pause_generation(mode="keep", clear_cache=False)
        os.kill(llm.engine.client.child.process, signal.SIGKILL)
        done, waiting = await asyncio.wait(readers, timeout=60)
        assert not waiting
        for reader in done:
            with pytest.raises(EngineDead, match="killed by SIGKILL"):
                reader.result()
        assert llm.errored
        with pytest.raises(EngineDead, match="killed by SIGKILL"):
            await llm.check_health()
        with pytest.raises(EngineDead, match="killed by SIGKILL"):
            await read(llm.generate([5], PARAMS))


@pytest.mark.asyncio
async def test_what_needs_live_arrays_says_so() -> None:
    async with engine() as llm:
        with pytest.raises(UnsupportedFeature, match="without executor= or multiprocess=True"):
            await llm.update_params({})
        for look in (lambda: llm.mesh, lambda: llm.ledger, llm.memory):
            with pytest.raises(UnsupportedFeature, match="multiprocess=True"):
                look()
        assert await read(llm.generate([5], PARAMS)) == told([5], 12)


def test_models_and_arrays_of_this_process_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"params=.*leave params out"):
        LLM("demo", params={}, multiprocess=True)
    with pytest.raises(ConfigError, match="model is a dict, which is in this process"):
        LLM({}, multiprocess=True)
    with pytest.raises(ConfigError, match="multiprocess='yes': expected True or False"):
        LLM("demo", multiprocess="yes")
    with pytest.raises(CheckpointError, match="not an existing folder"):
        LLM("no such folder", multiprocess=True)


def test_llm_works_over_a_core_process_too() -> None:
    with child_core() as client:
        args = EngineArgs("demo", skip_tokenizer_init=True, multiprocess=True)
        llm = LLM.over(engine_over(Deployment(args, Path("demo")), client, None, 60))
        prompts = [[number + 3, 5] for number in range(20)]
        outputs = llm.generate(prompts, PARAMS, use_tqdm=False)
        assert [one.outputs[0].token_ids for one in outputs] == [told(one, 12) for one in prompts]
        with pytest.raises(UnsupportedFeature, match="multiprocess=True"):
            llm.generate([[5]], PARAMS, capture="norm", use_tqdm=False)
        llm.shutdown()


def test_llm_pauses_a_core_process_and_resumes_it() -> None:
    with child_core() as client:
        args = EngineArgs("demo", skip_tokenizer_init=True, multiprocess=True)
        llm = LLM.over(engine_over(Deployment(args, Path("demo")), client, None, 60))
        llm.enqueue([[5, 6]], LONG, use_tqdm=False)
        llm.engine.session.step()
        llm.sleep(0, "keep")
        eventually(lambda: client.state().paused)
        assert llm.wake_up()
        (found,) = llm.wait_for_completion(use_tqdm=False)
        assert found.outputs[0].token_ids == told([5, 6], 900)
        llm.shutdown()


@pytest.mark.slow
def test_replicas_run_in_processes_of_their_own() -> None:
    llm = LLM(
        "demo", skip_tokenizer_init=True, executor="tests.executor.plugin:ScriptedWorkers",
        data_parallel_size=2, data_parallel_backend="process", show_progress=False,
    )  # fmt: skip
    try:
        prompts = [[number + 3, 5] for number in range(10)]
        outputs = llm.generate(prompts, PARAMS, use_tqdm=False)
        assert [one.outputs[0].token_ids for one in outputs] == [told(one, 12) for one in prompts]
        assert [one.where for one in llm.health()] == ["core 0, on paper", "core 1, on paper"]
        stats = llm.stats()
        assert len(stats.replicas) == 2 and all(one.generation_tokens for one in stats.replicas)
        for count in (1, 3):
            scale_replicas(llm.engine, count)
            outputs = llm.generate(prompts, PARAMS, use_tqdm=False)
            assert [one.outputs[0].token_ids for one in outputs] == [
                told(one, 12) for one in prompts
            ]
            where = [f"core {index}, on paper" for index in range(count)]
            assert [one.where for one in llm.health()] == where
        with pytest.raises(RequestError, match="expected 1 or more"):
            scale_replicas(llm.engine, 0)
    finally:
        llm.shutdown()


def test_where_replicas_run_is_checked() -> None:
    with pytest.raises(ConfigError, match="data_parallel_backend='rey': expected one of 'local'"):
        EngineArgs("demo", data_parallel_backend="rey")  # type: ignore[arg-type]
    assert not EngineArgs("demo", data_parallel_backend="mp").replicas_in_processes
    args = EngineArgs("demo", data_parallel_size=2, data_parallel_backend="mp")
    assert args.replicas_in_processes
    with pytest.raises(ConfigError, match="start_engine_process"):
        build_engine(args, progress_factory(False))
