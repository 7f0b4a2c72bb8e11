"""Several threads on one LLM, forked children, and fronts in processes without jax."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import jengine
from jengine import SamplingParams
from tests.engine.scripted import script_of, scripted_engine, told

ROOT = Path(__file__).parent.parent.parent
GREEDY = SamplingParams(temperature=0, max_tokens=60)


def test_threads_share_an_engine_and_its_steps() -> None:
    engine = scripted_engine()
    llm, script = jengine.LLM.over(engine), script_of(engine)
    script.step_seconds = 0.001
    begin = threading.Barrier(4)

    def work(number: int) -> None:
        begin.wait()
        for turn in range(3):
            prompts = [[number, turn, 1], [number, turn, 2]]
            outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
            found = [output.outputs[0].token_ids for output in outputs]
            assert found == [told(prompt, 60) for prompt in prompts]

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert script.most_rows > 2, "their requests should run together"
    assert script.steps < 4 * 3 * 60, "a step is for all"
    assert llm.stats().running == 0


def test_a_thread_goes_on_when_the_one_that_ran_the_steps_has_its_answers() -> None:
    engine = scripted_engine()
    llm = jengine.LLM.over(engine)
    script_of(engine).step_seconds = 0.001
    short, long = GREEDY.clone(max_tokens=5), GREEDY.clone(max_tokens=300)
    with ThreadPoolExecutor(2) as threads:
        slow = threads.submit(llm.generate, [1, 2], long, use_tqdm=False)
        for _ in range(20):
            assert llm.generate([3, 4], short, use_tqdm=False)[0].outputs[0].token_ids == told(
                [3, 4], 5
            )
        assert slow.result()[0].outputs[0].token_ids == told([1, 2], 300)


def test_a_stream_in_one_thread_and_calls_in_another() -> None:
    llm = jengine.LLM.over(scripted_engine())
    with ThreadPoolExecutor(1) as threads:
        stream = llm.stream([1, 2], GREEDY)
        first = next(stream)
        other = threads.submit(llm.generate, [3, 4], GREEDY, use_tqdm=False)
        assert other.result(60)[0].outputs[0].token_ids == told([3, 4], 60)
        *_, last = first, *stream
    assert last.finished and last.outputs[0].token_ids == told([1, 2], 60)


def in_a_process_of_its_own(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_forked_child_is_told_at_once() -> None:
    code = """
import os, threading
from jengine import LLM, SamplingParams
from jengine.errors import EngineDead
from tests.engine.scripted import scripted_engine, script_of
engine = scripted_engine()
llm = LLM.over(engine)
script_of(engine).step_seconds = 0.01
params = SamplingParams(temperature=0, max_tokens=100)
busy = threading.Thread(target=llm.generate, args=([1, 2], params), kwargs={"use_tqdm": False})
busy.start()  # so that locks are held while the process forks
while not script_of(engine).steps:
    pass
child = os.fork()
if not child:
    for call in (lambda: llm.generate([1, 2], params), llm.stats, lambda: llm.stream([1], params)):
        try:
            call()
        except EngineDead as error:
            print("child:", "spawn" in str(error), flush=True)
    llm.shutdown()
    os._exit(0)
os.waitpid(child, 0)
busy.join()
print("parent:", llm.generate([1, 2], params, use_tqdm=False)[0].finished)
"""
    assert in_a_process_of_its_own(code).split("\n")[:4] == [*["child: True"] * 3, "parent: True"]


DAEMON = """
import atexit, threading, time
def look():  # registered first, so it runs last
    steps = script.steps
    time.sleep(0.1)
    print("more steps:", script.steps - steps)
    print("answered:", llm.generate([1, 2], params, use_tqdm=False)[0].finished)
    llm.shutdown()
atexit.register(look)
from jengine import LLM, SamplingParams
from tests.engine.scripted import scripted_engine, script_of
engine = scripted_engine()
llm, script = LLM.over(engine), script_of(engine)
script.step_seconds = 0.001
params = SamplingParams(temperature=0, max_tokens=100)
def work():
    while True:
        llm.generate([3, 4], params, use_tqdm=False)
threading.Thread(target=work, daemon=True).start()
while script.steps < 5:
    pass
"""


def test_no_other_thread_steps_while_the_interpreter_ends() -> None:
    assert in_a_process_of_its_own(DAEMON).split("\n")[:2] == ["more steps: 0", "answered: True"]


IN_XLA = """
import threading
from jengine import LLM, SamplingParams
from tests.api.engines import SMALL_DEMO
llm = LLM("demo", **SMALL_DEMO)
params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
begun = threading.Event()
def work():
    while True:
        llm.generate(["Once"] * 4, params, use_tqdm=False)
        begun.set()
threading.Thread(target=work, daemon=True).start()
begun.wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(4))
def test_a_daemon_thread_in_a_step_does_not_abort_the_process(turn: int) -> None:
    assert in_a_process_of_its_own(IN_XLA) == ""


UNFINISHED = """
import atexit
from jengine import AsyncLLM
left = lambda: llm.engine.program_counts().programs_to_come
atexit.register(lambda: print(before - left(), flush=True))  # once the threads have ended
llm = AsyncLLM("demo", show_progress=False,
               compilation_config={"wait_for": "largest", "cache_dir": CACHE})
before = left()
assert before > 5, before
"""


@pytest.mark.slow
def test_a_program_ends_without_the_rest_of_its_warm_up(tmp_path: Path) -> None:
    code = UNFINISHED.replace("CACHE", repr(str(tmp_path)))
    assert int(in_a_process_of_its_own(code)) <= 2, "the one that was compiled, and one begun"


def test_a_front_needs_no_jax() -> None:
    code = """
import asyncio, sys
from jengine import SamplingParams
from jengine.api.async_requests import AsyncRequests
from jengine.api.request_batches import RequestBatch, RequestBatches
from jengine.api.front import Front
from tests.engine.scripted import scripted_engine, told
engine = scripted_engine()
front, batch = Front("test", engine), RequestBatch()
batches = RequestBatches(front.session)
batches.submit(batch, front.asked([[1, 2], [3, 4]], None))
found = {tuple(one.prompt_token_ids): one.outputs[0].token_ids for one in batches.run(batch)}
assert found == {(1, 2): told([1, 2], 5), (3, 4): told([3, 4], 5)}, found
requests = AsyncRequests(front.session)
async def read():
    params = SamplingParams(temperature=0, max_tokens=7)
    stream = requests.stream(lambda reader: front.session.submit([5], params, reader=reader))
    return [one async for one in stream][-1]
assert asyncio.run(read()).outputs[0].token_ids == told([5], 7)
assert front.stats().programs == 3
requests.shutdown()
print([name for name in ("jax", "flax", "torch") if name in sys.modules])
"""
    assert in_a_process_of_its_own(code).strip() == "[]"
