"""Sleep: memory is given back, nothing is compiled at waking, answers are the same afterwards."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.monitoring
import numpy as np
import pytest

import jengine
from jengine import AsyncLLM, SamplingParams
from jengine.engine.questions import Resume
from jengine.errors import EngineAsleep, RequestError
from jengine.executor.local import RUN
from tests.api.async_reading import last, run
from tests.api.engines import answers, is_idle, random_prompts, tiny_engine
from tests.engine.scripted import script_of, scripted_engine, told
from tests.marks import slow

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = random_prompts(5, 40, 20)
PACKAGE = str(Path(jengine.__file__).parent)
COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


@pytest.fixture(scope="module")
def sleeper(full_folder: Path) -> Iterator[jengine.LLM]:
    llm = tiny_engine(full_folder, enable_sleep_mode=True)
    yield llm
    assert is_idle(llm)
    llm.shutdown()


def test_few_functions_stand_between_a_call_and_the_worker(
    sleeper: jengine.LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    stacks: list[list[str]] = []

    def look(*_: Any) -> list[str]:
        files = [frame.filename for frame in traceback.extract_stack()]
        stacks.append([file for file in files if file.startswith(PACKAGE)])
        return []

    monkeypatch.setitem(RUN, "sleep", look)
    sleeper.sleep()
    assert sleeper.wake_up()
    assert 0 < len(stacks[0]) <= 5, stacks[0]


@contextmanager
def counted_compiles() -> Iterator[list[str]]:
    seen: list[str] = []

    def listen(event: str, _seconds: float, **_: Any) -> None:
        if event == COMPILE_EVENT:
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def live_bytes() -> int:
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


def memory(llm: jengine.LLM) -> tuple[int, int]:
    (found,) = llm.call_workers("memory")
    return found.weights, found.cache


@pytest.mark.parametrize("level", [1, *slow(2)])
def test_memory_is_given_back_and_nothing_compiled_at_waking(
    sleeper: jengine.LLM, level: int
) -> None:
    expected = answers(sleeper.generate(PROMPTS, GREEDY))
    awake, before = memory(sleeper), live_bytes()
    with counted_compiles() as compiled:
        sleeper.sleep(level)
        assert sleeper.is_sleeping() and memory(sleeper) == (0, 0)
        assert sleeper.get_metrics() and "float32" in repr(sleeper)
        freed = awake[1] if level == 1 else sum(awake)  # on a CPU weights are in host memory
        assert freed > 0 and before - live_bytes() >= freed
        if level == 2:
            assert not sleeper.wake_up(["weights"]), "they were dropped"
            with pytest.raises(EngineAsleep, match="wake_up"):
                sleeper.generate(PROMPTS, GREEDY)
            assert not sleeper.wake_up()
            with pytest.raises(EngineAsleep):
                sleeper.engine.client.ask(Resume())
            sleeper.collective_rpc("reload_weights")
        assert sleeper.wake_up() and not sleeper.is_sleeping()
        assert memory(sleeper) == awake and live_bytes() == before
        assert answers(sleeper.generate(PROMPTS, GREEDY)) == expected
    assert not compiled


def test_updates_wake_weights_that_were_dropped(sleeper: jengine.LLM) -> None:
    expected = answers(sleeper.generate(PROMPTS, GREEDY))
    values = {name: np.array(one) for name, one in sleeper.engine.loaded.parameters().items()}
    others = {name: one * 1.5 for name, one in values.items()}
    sleeper.sleep(2)
    with pytest.raises(EngineAsleep, match="weights"):
        sleeper.save("/nowhere")
    assert sleeper.update_params(others) == sleeper.weights_version
    assert sleeper.is_sleeping(), "the cache still sleeps"
    assert sleeper.wake_up(["kv_cache"])
    assert answers(sleeper.generate(PROMPTS, GREEDY)) != expected
    sleeper.update_params(values)
    assert answers(sleeper.generate(PROMPTS, GREEDY)) == expected


def test_parts_sleep_and_wake_alone(sleeper: jengine.LLM) -> None:
    expected = answers(sleeper.generate(PROMPTS, GREEDY))
    awake = memory(sleeper)
    sleeper.release_kv_cache_memory()
    assert memory(sleeper) == (awake[0], 0)
    sleeper.sleep(1, tags=["weights"])
    assert memory(sleeper) == (0, 0)
    assert not sleeper.wake_up(["kv_cache"])
    assert memory(sleeper) == (0, awake[1])
    gauges = {one.name: one for one in sleeper.get_metrics() if "sleep" in one.name}
    assert gauges
    assert sleeper.stats().running == 0
    assert sleeper.wake_up(["weights", "scheduling"])
    assert answers(sleeper.generate(PROMPTS, GREEDY)) == expected


def test_the_metric_says_how_deeply_it_sleeps(sleeper: jengine.LLM) -> None:
    def state() -> dict[str, float]:
        found = [one for one in sleeper.get_metrics() if one.name.endswith("engine_sleep_state")]
        return {one.labels["sleep_state"]: one.value for one in found}  # type: ignore[union-attr]

    assert state() == {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
    sleeper.sleep(1)
    assert state() == {"awake": 0, "weights_offloaded": 1, "discard_all": 0}
    sleeper.sleep(2)
    assert state() == {"awake": 0, "weights_offloaded": 0, "discard_all": 1}
    sleeper.reload_weights()
    assert sleeper.wake_up()
    assert state() == {"awake": 1, "weights_offloaded": 0, "discard_all": 0}


def test_prompts_that_are_queued_meanwhile_are_answered_or_refused(sleeper: jengine.LLM) -> None:
    expected = answers(sleeper.generate(PROMPTS, GREEDY))
    sleeper.sleep(1)
    sleeper.enqueue(PROMPTS, GREEDY)
    with pytest.raises(EngineAsleep, match="put to sleep"):
        sleeper.wait_for_completion()
    with pytest.raises(EngineAsleep, match="put to sleep"):
        next(sleeper.stream(PROMPTS, GREEDY))
    assert sleeper.wake_up()
    assert answers(sleeper.wait_for_completion()) == expected
    sleeper.sleep(1, new_requests="refuse")
    with pytest.raises(EngineAsleep, match="Send the request again"):
        sleeper.enqueue(PROMPTS, GREEDY)
    sleeper.wake_up()


def test_a_thread_does_not_wait_for_its_own_waking(sleeper: jengine.LLM) -> None:
    stream = sleeper.stream(PROMPTS, GREEDY.clone(max_tokens=200))
    next(stream)
    sleeper.sleep(1, "keep")
    with pytest.raises(EngineAsleep, match="put to sleep"):
        list(stream)
    assert sleeper.wake_up()
    assert list(stream) == []
    assert sleeper.stats().running == 0


@pytest.mark.parametrize("mode", ["keep", "abort", "wait"])
def test_requests_of_another_thread(sleeper: jengine.LLM, mode: Any) -> None:
    params = GREEDY.clone(max_tokens=200)
    expected = answers(sleeper.generate(PROMPTS, params))
    begun, found = threading.Event(), []

    def read() -> None:
        done = {}
        for output in sleeper.stream(PROMPTS, params):
            begun.set()
            done[output.request_id] = output
        found.extend(done[name] for name in sorted(done, key=int))

    thread = threading.Thread(target=read)
    thread.start()
    begun.wait()
    sleeper.sleep(1, mode)
    assert memory(sleeper) == (0, 0)
    assert sleeper.stats().running == 0
    if mode == "keep":
        thread.join(0.05)
        assert thread.is_alive(), "its requests wait for the waking"
    assert sleeper.wake_up()
    thread.join()
    if mode == "abort":
        assert {output.outputs[0].finish_reason for output in found} == {"abort"}
    else:
        assert answers(found) == expected


@pytest.mark.parametrize(
    ("call", "kind", "complaint"),
    [
        (lambda llm: llm.sleep(3), RequestError, "level=3"),
        (lambda llm: llm.sleep(1, "stop"), RequestError, "mode='stop'"),
        (lambda llm: llm.sleep(1, new_requests="drop"), RequestError, "new_requests='drop'"),
        (lambda llm: llm.sleep(1, tags=["kv"]), RequestError, "expected a list of weights"),
        (lambda llm: llm.sleep(0, tags=["kv_cache"]), RequestError, "only pauses"),
        (lambda llm: llm.wake_up("weights"), RequestError, "expected a list of weights"),
        (lambda llm: llm.call_workers("sleep", level=1, tags=[]), RequestError, "use the method"),
    ],
)
def test_what_is_refused(
    sleeper: jengine.LLM, call: Any, kind: type[Exception], complaint: str
) -> None:
    with pytest.raises(kind, match=complaint):
        call(sleeper)
    assert not sleeper.is_sleeping()


def test_only_engines_with_sleep_mode_sleep(full_engine: jengine.LLM) -> None:
    with pytest.raises(RequestError, match="enable_sleep_mode=True"):
        full_engine.sleep()
    full_engine.sleep(level=0)
    assert full_engine.is_sleeping()
    with pytest.raises(EngineAsleep):
        full_engine.generate(PROMPTS, GREEDY)
    assert full_engine.wake_up(["scheduling"]) and not full_engine.is_sleeping()
    assert is_idle(full_engine)


# --- AsyncLLM ----------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [1, 2])
def test_kept_requests_go_on_after_the_waking(level: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)

    async def work() -> None:
        engine = AsyncLLM.over(scripted_engine(enable_sleep_mode=True))
        script = script_of(engine.engine)
        script.step_seconds = 0.02
        stream = engine.generate([1, 2], params)
        await anext(stream)
        first = asyncio.create_task(last(stream))
        await engine.sleep(level, "keep")
        script.step_seconds = 0.0
        assert await engine.is_sleeping() and script.asleep == {"weights", "kv_cache"}
        second = asyncio.create_task(last(engine.generate([3, 4], params)))
        await asyncio.sleep(0.02)
        assert not first.done() and not second.done()
        with pytest.raises(EngineAsleep):
            await engine.resume_generation()
        assert await engine.wake_up() == (level == 1)
        if level == 2:
            await engine.reload_weights()
            assert await engine.wake_up()
        assert not await engine.is_sleeping()
        assert (await first).outputs[0].token_ids == told([1, 2], 100)
        assert (await second).outputs[0].token_ids == told([3, 4], 100)
        await engine.sleep(1, new_requests="refuse")
        with pytest.raises(EngineAsleep, match="Send the request again"):
            await anext(engine.generate([5], params))
        await engine.wake_up()
        assert (await last(engine.generate([5], params))).outputs[0].token_ids == told([5], 100)
        engine.shutdown()

    run(work())


MEASURE = """
import gc, json, jax, psutil
from jengine import LLM, SamplingParams

def now():
    gc.collect()
    return psutil.Process().memory_info().rss, sum(one.nbytes for one in jax.live_arrays())

llm = LLM("demo", enable_sleep_mode=True, enforce_eager=True, show_progress=False,
          attention_backend="xla", kv_cache_memory_bytes=400_000_000, max_model_len=256,
          compilation_config={"decode_rows": [4], "prefill_tokens": [256]}, max_num_seqs=4)
text = lambda: llm.generate("Once", SamplingParams(temperature=0, max_tokens=8))[0].outputs[0].text
before, said = now(), text()
before = now()
llm.sleep(1)
asleep = now()
llm.wake_up()
assert text() == said
print(json.dumps([before, asleep, now()]))
"""


@pytest.mark.slow
def test_the_process_gives_memory_back_to_the_system() -> None:
    """XLA has written every block of its cache, so all of it is resident."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True
    )
    awake, asleep, again = json.loads(done.stdout.splitlines()[-1])
    assert awake[1] - asleep[1] > 390e6 and again[1] == awake[1], "live arrays"
    assert awake[0] - asleep[0] > 350e6, "resident memory"
    assert abs(again[0] - awake[0]) < 60e6
