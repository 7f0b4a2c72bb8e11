"""Ctrl-C, leaving early, shutting down, dying: nothing is left behind, and errors say so."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import jengine
from jengine import RequestOutputKind, SamplingParams
from jengine.engine.core import EngineCore
from jengine.errors import EngineDead
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.scheduler.scheduler import Scheduler
from tests.api.engines import answers, is_idle, random_prompts, rebuilt, tiny_engine
from tests.executor.scripted import ScriptedExecutor

PROMPTS = random_prompts(9, 40, 17, seed=2)
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
LONG = GREEDY.clone(max_tokens=600)
DELTAS = GREEDY.clone(output_kind=RequestOutputKind.DELTA)


@contextmanager
def each_step(llm: jengine.LLM, happens: Callable[[int], None]) -> Iterator[None]:
    """Call `happens` with the step's number inside every step."""
    executor = llm.engine.in_process.core.executor
    submit, count = executor.submit, 0

    def wrapped(plan: Any) -> Any:
        nonlocal count
        count += 1
        happens(count)
        return submit(plan)

    executor.submit = wrapped  # type: ignore[method-assign]
    try:
        yield
    finally:
        executor.submit = submit  # type: ignore[method-assign]


def press_ctrl_c_at(step: int) -> Callable[[int], None]:
    def happens(count: int) -> None:
        if count == step:
            signal.raise_signal(signal.SIGINT)

    return happens


@pytest.fixture
def expected(llm: jengine.LLM) -> list[list[list[int]]]:
    return answers(llm.generate(PROMPTS, GREEDY))


# Ctrl-C


@pytest.mark.parametrize("step", [1, 2, 7])
def test_ctrl_c_aborts_everything_and_the_next_call_is_right(
    llm: jengine.LLM, expected: Any, step: int
) -> None:
    with each_step(llm, press_ctrl_c_at(step)), pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, LONG)
    assert is_idle(llm)
    assert answers(llm.generate(PROMPTS, GREEDY)) == expected
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_from_outside(llm: jengine.LLM, expected: Any) -> None:
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()  # in here: on a busy machine it may be over before anything is asked
        while True:
            llm.generate(PROMPTS, LONG)
    timer.join()
    assert is_idle(llm)
    assert answers(llm.generate(PROMPTS, GREEDY)) == expected


def test_a_second_ctrl_c_does_not_wait_for_the_step(llm: jengine.LLM, expected: Any) -> None:
    def twice(count: int) -> None:
        if count == 4:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            pytest.fail("the second one should have ended the step")

    with each_step(llm, twice), pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, LONG)
    assert is_idle(llm)
    assert answers(llm.generate(PROMPTS, GREEDY)) == expected


def test_ctrl_c_at_any_line_of_the_engine(llm: jengine.LLM, expected: Any) -> None:
    short = GREEDY.clone(max_tokens=2)
    at = 1
    while interrupt_at_line(at, lambda: llm.generate(PROMPTS, short)):
        assert is_idle(llm), f"something is left after Ctrl-C at line {at}"
        at += 5 if at < 100 else 23
    assert at > 100
    assert answers(llm.generate(PROMPTS, GREEDY)) == expected


def interrupt_at_line(number: int, call: Callable[[], Any]) -> bool:
    """Press Ctrl-C when so many lines of jengine/api have run; False if fewer do."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        if "/jengine/api/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            count += 1
            if count == number:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_ctrl_c_while_a_stream_is_read(llm: jengine.LLM, expected: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        for number, _ in enumerate(llm.stream(PROMPTS, LONG)):
            if number == 5:
                signal.raise_signal(signal.SIGINT)
    assert is_idle(llm)
    stream = llm.stream(PROMPTS, LONG)
    with each_step(llm, press_ctrl_c_at(5)), pytest.raises(KeyboardInterrupt):
        list(stream)
    assert is_idle(llm)
    assert answers(llm.generate(PROMPTS, GREEDY)) == expected


def test_ctrl_c_ends_everything_that_was_queued(llm: jengine.LLM, expected: Any) -> None:
    for prompt in PROMPTS:
        llm.enqueue(prompt, LONG)
    with each_step(llm, press_ctrl_c_at(3)), pytest.raises(KeyboardInterrupt):
        llm.wait_for_completion()
    assert is_idle(llm)
    assert llm.wait_for_completion() == []
    assert answers(llm.generate(PROMPTS, GREEDY)) == expected


def test_a_program_with_its_own_handler_keeps_it(llm: jengine.LLM) -> None:
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        with each_step(llm, press_ctrl_c_at(2)):
            assert all(output.finished for output in llm.generate(PROMPTS, GREEDY))
        assert pressed == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_failing_progress_bar_leaves_nothing_behind(llm: jengine.LLM) -> None:
    def broken(**options: Any) -> Any:
        raise OSError(options["desc"])

    with pytest.raises(OSError, match="Rendering prompts"):
        llm.generate(PROMPTS, GREEDY, use_tqdm=broken)
    llm.enqueue(PROMPTS, GREEDY)
    with pytest.raises(OSError, match="Processed prompts"):
        llm.wait_for_completion(use_tqdm=broken)
    assert is_idle(llm)


# Streams


@pytest.mark.parametrize("outputs_read", [0, 1, 4])
def test_leaving_a_stream_aborts_it(llm: jengine.LLM, outputs_read: int) -> None:
    stream = llm.stream(PROMPTS, LONG)
    for _ in range(outputs_read):
        next(stream)
    del stream
    gc.collect()
    assert is_idle(llm)
    stream = llm.stream(PROMPTS, LONG)
    stream.close()
    del stream
    assert is_idle(llm)


def test_two_interleaved_streams_get_their_own_outputs(llm: jengine.LLM, expected: Any) -> None:
    streams = [llm.stream(prompt, DELTAS) for prompt in PROMPTS[:2]]
    found: list[list[int]] = [[], []]
    open_streams = {0, 1}
    while open_streams:
        for index in list(open_streams):
            output = next(streams[index], None)
            if output is None:
                open_streams.discard(index)
            else:
                assert output.prompt_token_ids == PROMPTS[index]
                found[index] += output.outputs[0].token_ids
    assert found == [answer[0] for answer in expected[:2]]


def test_a_call_beside_an_open_stream_loses_nothing(llm: jengine.LLM, expected: Any) -> None:
    stream = llm.stream(PROMPTS[0], DELTAS)
    found = list(next(stream).outputs[0].token_ids)
    assert answers(llm.generate(PROMPTS[1:], GREEDY)) == expected[1:]
    for output in stream:
        found += output.outputs[0].token_ids
    assert found == expected[0][0]


# Lifetime


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory: pytest.TempPathFactory, full_folder: Path) -> Path:
    """The same model with other weights."""
    folder = tmp_path_factory.mktemp("other")
    tensors = load_file(full_folder / "model.safetensors")
    swapped = {name: np.ascontiguousarray(tensor[::-1]) for name, tensor in tensors.items()}
    save_file(swapped, folder / "model.safetensors")
    (folder / "config.json").write_text((full_folder / "config.json").read_text())
    return folder


@pytest.fixture
def own(full_folder: Path) -> jengine.LLM:
    """An engine of the test's own, to be broken."""
    return tiny_engine(full_folder)


def test_deleting_an_engine_gives_its_memory_back(full_folder: Path) -> None:
    # The weights alone are known to the session-scoped engines; count what comes on top.
    gc.collect()
    before = len(jax.live_arrays())
    own = tiny_engine(full_folder)
    stream = own.stream(PROMPTS, LONG)
    next(stream)
    assert len(jax.live_arrays()) > before + 10
    del own
    assert next(stream).request_id, "a stream keeps its engine"
    stream.close()
    del stream
    gc.collect()
    assert len(jax.live_arrays()) <= before


def test_with_and_double_shutdown(own: jengine.LLM) -> None:
    with own as llm:
        assert llm.generate(PROMPTS[0], GREEDY)[0].finished
    own.shutdown()
    own.shutdown()
    gc.collect()
    for call in (
        lambda: own.generate(PROMPTS[0], GREEDY),
        lambda: own.enqueue(PROMPTS[0], GREEDY),
        lambda: own.stream(PROMPTS[0], GREEDY),
        lambda: own.stats(),
        lambda: own.ledger,
        lambda: own.get_tokenizer(),
    ):
        with pytest.raises(EngineDead, match=r"was shut down\. Create a new one"):
            call()


def test_a_stream_open_at_shutdown_says_so(own: jengine.LLM) -> None:
    stream = own.stream(PROMPTS, LONG)
    next(stream)
    own.shutdown()
    with pytest.raises(EngineDead, match="has stopped") as caught:
        list(stream)
    assert "was shut down" in str(caught.value.__cause__)


def test_an_error_inside_with_is_not_hidden(own: jengine.LLM) -> None:
    with pytest.raises(ZeroDivisionError), own:
        next(own.stream(PROMPTS, LONG))
        raise ZeroDivisionError


@pytest.mark.slow
def test_engines_of_the_same_and_other_weights_side_by_side(
    llm: jengine.LLM, expected: Any, own: jengine.LLM, other_folder: Path
) -> None:
    other = tiny_engine(other_folder)
    streams = [engine.stream(PROMPTS[0], DELTAS) for engine in (llm, own, other)]
    found: list[list[int]] = [[], [], []]
    for outputs in zip(*streams, strict=True):
        for tokens, output in zip(found, outputs, strict=True):
            tokens += output.outputs[0].token_ids
    assert found[0] == found[1] == expected[0][0]
    assert found[2] == answers(other.generate(PROMPTS[0], GREEDY))[0][0] != found[0]


def test_an_engine_may_live_in_another_thread(llm: jengine.LLM, expected: Any) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(llm.generate(PROMPTS, GREEDY)))
    thread.start()
    thread.join()
    assert answers(found[0]) == expected


def test_outputs_come_in_the_order_of_the_prompts(llm: jengine.LLM) -> None:
    prompts = random_prompts(*[5] * 20)
    params = [GREEDY.clone(max_tokens=1 + (7 * i) % 11) for i in range(20)]
    outputs = llm.generate(prompts, params)
    assert [output.prompt_token_ids for output in outputs] == prompts
    lengths = [len(output.outputs[0].token_ids) for output in outputs]
    assert lengths == [one.max_tokens for one in params]
    assert len({output.request_id for output in outputs}) == 20


def test_calls_leave_no_arrays_behind(llm: jengine.LLM) -> None:
    params = [
        SamplingParams(max_tokens=3, logprobs=2, prompt_logprobs=1, repetition_penalty=1.1),
        GREEDY,
        SamplingParams(max_tokens=5, n=3, seed=4),
    ]
    llm.generate(PROMPTS, params)
    gc.collect()
    counts = set()
    for _ in range(20):
        llm.generate(PROMPTS, params)
        counts.add(len(jax.live_arrays()))
    assert max(counts) - min(counts) <= 8, "only a last step's outputs may still be in flight"
    gc.collect()
    assert llm.engine.session.open_answers == []


# Death


class Broken:
    """A step whose result cannot be read."""

    def result(self) -> Any:
        raise ConnectionError("the device is gone")


def test_a_failing_step_kills_the_engine_and_names_the_cause(own: jengine.LLM) -> None:
    core = own.engine.in_process.core
    submit, steps = core.executor.submit, 0

    def failing(plan: Any) -> Any:
        nonlocal steps
        steps += 1
        return submit(plan) if steps < 4 else Broken()

    core.executor.submit = failing  # type: ignore[method-assign]
    with pytest.raises(EngineDead, match="ConnectionError: the device is gone") as caught:
        own.generate(PROMPTS, GREEDY)
    assert isinstance(caught.value.__cause__, ConnectionError)
    for _ in range(2):
        with pytest.raises(EngineDead, match="has stopped; create a new one") as later:
            own.generate(PROMPTS, GREEDY)
        assert isinstance(later.value.__cause__, ConnectionError)
    with pytest.raises(EngineDead):
        own.stream(PROMPTS, GREEDY)
    own.shutdown()
    own.shutdown()


def test_an_executor_that_fails_on_submission(llm: jengine.LLM) -> None:
    with rebuilt(llm):
        engine = llm.engine
        scheduler = Scheduler(engine.schedule, CacheCoordinator(engine.cache))
        executor = ScriptedExecutor(engine.cache, engine.model.vocab_size)
        core = engine.in_process.core = EngineCore(scheduler, executor, depth=1)
        assert llm.generate(PROMPTS, GREEDY)[0].finished
        executor.submit = lambda plan: 1 / 0  # type: ignore[assignment,method-assign,return-value]
        with pytest.raises(EngineDead, match="ZeroDivisionError"):
            llm.generate(PROMPTS, GREEDY)
        assert isinstance(core.failure, ZeroDivisionError)
    assert is_idle(llm)


# Logits that are not finite

POISON = 5


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory, full_folder: Path) -> jengine.LLM:
    """The same model, but one token's embedding is NaN."""
    folder = tmp_path_factory.mktemp("poisoned")
    tensors = load_file(full_folder / "model.safetensors")
    tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].copy()
    tensors["model.embed_tokens.weight"][POISON] = np.nan
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text((full_folder / "config.json").read_text())
    return tiny_engine(folder)


def test_nan_fails_one_request_alone(poisoned: jengine.LLM, llm: jengine.LLM) -> None:
    ban = GREEDY.clone(logit_bias={POISON: -100.0})
    healthy = [[token for token in prompt if token != POISON] for prompt in PROMPTS]
    sick = [*healthy[1], POISON, 7, 8]
    expected = answers(llm.generate(healthy, ban))
    outputs = poisoned.generate([healthy[0], sick, healthy[1], healthy[2]], ban)
    assert answers([outputs[0], *outputs[2:]]) == expected
    failed = outputs[1]
    assert failed.finished and failed.outputs[0].finish_reason == "error"
    assert failed.outputs[0].token_ids == []
    assert failed.error is not None and "not finite" in failed.error
    assert all(output.error is None for output in (outputs[0], *outputs[2:]))
    assert is_idle(poisoned)


def test_a_failed_request_leaves_nothing_to_be_found(poisoned: jengine.LLM) -> None:
    sick = [POISON] * 64
    for _ in range(2):
        output = poisoned.generate([sick], GREEDY)[0]
        assert output.outputs[0].finish_reason == "error"
        assert output.num_cached_tokens == 0
    assert is_idle(poisoned)


def test_blocks_that_held_nan_are_safe_to_use_again(
    poisoned: jengine.LLM, llm: jengine.LLM
) -> None:
    ban = GREEDY.clone(logit_bias={POISON: -100.0})
    healthy = [[token for token in prompt if token != POISON] for prompt in PROMPTS]
    with rebuilt(llm, num_blocks=49):
        expected = answers(llm.generate(healthy, ban))
    with rebuilt(poisoned, num_blocks=49):
        for _ in range(3):
            poisoned.generate([[POISON] * 700], GREEDY)
            assert answers(poisoned.generate(healthy, ban)) == expected
