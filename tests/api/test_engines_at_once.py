"""Engines that run at the same time in one process, in loops and threads, and long steps.

With the CPU's kernels all engines share XLA's threads, scratch memory and one compiled library.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import jengine
from jengine import SamplingParams
from tests.api.engines import SMALL_DEMO, answers, is_idle
from tests.engine.scripted import script_of, scripted_engine, told

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=2)
DRAWN = SamplingParams(temperature=1.0, seed=5, max_tokens=24, ignore_eos=True, n=2)
PROMPTS = ["Once upon a time", "What is two plus three?", "The dog " * 30]


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[jengine.LLM, jengine.LLM]]:
    with jengine.LLM("demo", **SMALL_DEMO) as one, jengine.LLM("demo", **SMALL_DEMO) as other:
        yield one, other


def found_by(llm: jengine.LLM, params: SamplingParams) -> Any:
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    numbers = [
        [one.logprobs_array.tolist() for one in output.outputs if one.logprobs is not None]
        for output in outputs
    ]
    return answers(outputs), numbers


@pytest.mark.slow
def test_two_engines_at_the_same_time_give_the_answers_of_one_alone(pair: Any) -> None:
    alone = [found_by(pair[0], params) for params in (GREEDY, DRAWN)]
    begin = threading.Barrier(2)

    def work(llm: jengine.LLM) -> list[Any]:
        begin.wait()
        return [found_by(llm, params) for _ in range(3) for params in (GREEDY, DRAWN)]

    with ThreadPoolExecutor(2) as threads:
        for found in threads.map(work, pair):
            assert found == alone * 3
    assert all(map(is_idle, pair))


@pytest.mark.slow
def test_one_engine_ends_while_the_other_runs(pair: Any) -> None:
    alone = found_by(pair[0], GREEDY)
    with ThreadPoolExecutor(1) as threads:
        busy = threads.submit(lambda: [found_by(pair[0], GREEDY) for _ in range(4)])
        third = jengine.LLM("demo", **SMALL_DEMO)
        assert found_by(third, GREEDY) == alone
        third.shutdown()
        del third
        assert busy.result() == [alone] * 4


@pytest.mark.slow
def test_ctrl_c_in_the_middle_of_kernels(pair: Any) -> None:
    llm = pair[0]
    alone = found_by(llm, GREEDY)
    long = GREEDY.clone(max_tokens=150)
    for turn in range(8):
        # Different moments of a step, of which the prompts' takes longest.
        timer = threading.Timer(0.005 * (turn + 1), os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            timer.start()  # in here: on a busy machine it may be over before anything is asked
            while True:
                llm.generate(["The cat " * 60] * 3, long, use_tqdm=False)
        timer.join()
        assert is_idle(llm)
    assert found_by(llm, GREEDY) == alone


def test_ctrl_c_in_a_long_step_waits_for_its_end_and_no_longer() -> None:
    engine = scripted_engine()
    llm, script = jengine.LLM.over(engine), script_of(engine)
    script.step_seconds = 0.5

    def press() -> None:
        while not script.steps:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        llm.generate([1, 2], SamplingParams(temperature=0, max_tokens=50), use_tqdm=False)
    pressing.join()
    assert time.monotonic() - began > 0.4
    assert script.steps <= 2, "it waits no longer"
    script.step_seconds = 0.0
    assert llm.generate([3, 4], use_tqdm=False)[0].outputs[0].token_ids == told([3, 4], 5)
    assert llm.stats().running == llm.stats().waiting == 0


def test_an_engine_inside_a_running_event_loop() -> None:
    """As in a notebook, whose cells run inside a loop."""
    llm = jengine.LLM.over(scripted_engine())

    async def cell() -> list[int]:
        await asyncio.sleep(0)
        return llm.generate([1, 2], use_tqdm=False)[0].outputs[0].token_ids

    assert asyncio.run(cell()) == told([1, 2], 5)
