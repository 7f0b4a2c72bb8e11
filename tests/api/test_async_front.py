"""AsyncLLM over a scripted engine: streams, slow readers, slow tokenizers, questions, endings."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from jengine import AsyncLLM, RequestOutputKind, SamplingParams
from jengine.errors import EngineDead, RequestError
from jengine.grammar import guidance
from jengine.structured_outputs import GrammarSpec, StructuredOutputsParams
from jengine.text.tokenizer import Tokenizer
from tests.api.async_reading import last, run
from tests.engine.scripted import script_of, scripted_engine, told
from tests.server.serving import letters_engine

GREEDY = SamplingParams(temperature=0, max_tokens=20)
LONG = GREEDY.clone(max_tokens=450)
DELTA = LONG.clone(output_kind=RequestOutputKind.DELTA)


@pytest.fixture
def engine() -> Iterator[AsyncLLM]:
    llm = AsyncLLM.over(scripted_engine())
    yield llm
    llm.shutdown()


def test_an_id_may_be_used_again_after_leaving_the_first_stream(engine: AsyncLLM) -> None:
    async def work() -> None:
        for _ in range(5):
            async for _output in engine.generate([1, 2], LONG, "same"):
                break
            final = await last(engine.generate([3, 4], GREEDY, "same"))
            assert final.outputs[0].token_ids == told([3, 4], 20)

    run(work())


@pytest.mark.parametrize("params", [LONG, DELTA])
def test_a_slow_reader_gets_the_rest_in_one_output(
    engine: AsyncLLM, params: SamplingParams
) -> None:
    async def work() -> None:
        stream = engine.generate([1, 2], params)
        first = await anext(stream)
        await engine.wait_for_requests_to_drain(30)
        rest = [output async for output in stream]
        assert len(rest) == 1 and rest[0].finished
        ids = sum(len(output.outputs[0].token_ids) for output in (first, *rest))
        assert ids == 450 if params is DELTA else ids <= 2 * 450
        assert rest[0].outputs[0].token_ids[-5:] == told([1, 2], 450)[-5:]

    run(work())


def test_a_slow_grammar_holds_up_no_other_request(monkeypatch: pytest.MonkeyPatch) -> None:
    release, real = threading.Event(), guidance.llguidance_grammar

    def slow(spec: GrammarSpec) -> str:
        assert spec.text != "slow" or release.wait(60)
        return real(spec)

    monkeypatch.setattr(guidance, "llguidance_grammar", slow)
    engine = AsyncLLM.over(letters_engine())
    ruled = GREEDY.clone(structured_outputs=StructuredOutputsParams(regex="slow"))

    async def work() -> None:
        waiting = asyncio.ensure_future(last(engine.generate([1, 2], ruled)))
        final = await last(engine.generate([3, 4], GREEDY))
        assert final.outputs[0].token_ids == told([3, 4], 20) and not waiting.done()
        release.set()
        assert (await waiting).outputs[0].text.startswith("slow")

    run(work())
    engine.shutdown()


def test_many_readers_of_two_event_loops(engine: AsyncLLM) -> None:
    async def work(first: int) -> list[list[int]]:
        streams = (last(engine.generate([first, i], GREEDY)) for i in range(20))
        return [final.outputs[0].token_ids for final in await asyncio.gather(*streams)]

    found: dict[int, list[list[int]]] = {}
    threads = [threading.Thread(target=lambda n=n: found.update({n: run(work(n))})) for n in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: [told([n, i], 20) for i in range(20)] for n in (1, 2)}


def test_a_stream_whose_event_loop_is_gone_ends(engine: AsyncLLM) -> None:
    script_of(engine.engine).step_seconds = 0.01  # the rest would take 4 s
    streams = []

    async def work() -> None:
        streams.append(engine.generate([1, 2], LONG))
        await anext(streams[0])

    run(work())  # the stream is still held, but its loop is closed
    run(engine.wait_for_requests_to_drain(10))
    assert script_of(engine.engine).steps < 400


class SlowTokenizer:
    """Waits inside `encode` and while it decodes until it is told to go on."""

    def __init__(self, letters: Any) -> None:
        self.tokenizer = Tokenizer(letters)
        self.go_on = threading.Event()
        self.waiting = threading.Event()

    def block(self, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
        plain = getattr(Tokenizer, method)

        def blocked(*arguments: Any, **more: Any) -> Any:
            self.waiting.set()
            assert self.go_on.wait(60)
            return plain(*arguments, **more)

        monkeypatch.setattr(Tokenizer, method, blocked)


def test_steps_go_on_while_a_text_is_tokenized(
    letters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowTokenizer(letters)
    engine = AsyncLLM.over(scripted_engine(tokenizer=slow.tokenizer))
    slow.block(monkeypatch, "encode")

    async def work() -> None:
        slow.go_on.set()
        stream = engine.generate([1, 2], LONG.clone(detokenize=False))
        await anext(stream)
        slow.go_on.clear()
        refused = asyncio.create_task(last(engine.generate("x" * 5000, GREEDY)))
        tokens = 0
        while tokens < 450:  # all of it comes while the other text is still being tokenized
            tokens = len((await anext(stream)).outputs[0].token_ids)
        assert slow.waiting.is_set() and not refused.done()
        slow.go_on.set()
        with pytest.raises(RequestError, match="maximum context length"):
            await refused

    run(work())
    engine.shutdown()


def test_steps_go_on_while_text_is_made(letters: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowTokenizer(letters)
    engine = AsyncLLM.over(scripted_engine(tokenizer=slow.tokenizer))
    from jengine.engine.answer import Answer

    plain = Answer.push

    def blocked(*arguments: Any) -> Any:
        slow.waiting.set()
        assert slow.go_on.wait(60)
        return plain(*arguments)

    monkeypatch.setattr(Answer, "push", blocked)

    async def work() -> None:
        answering = asyncio.create_task(last(engine.generate([40, 41], GREEDY)))
        await asyncio.to_thread(slow.waiting.wait, 60)
        began, script = time.monotonic(), script_of(engine.engine)
        while script.steps < 20 and time.monotonic() - began < 60:
            await asyncio.sleep(0.001)
        assert script.steps >= 20 and not answering.done()
        slow.go_on.set()
        assert (await answering).outputs[0].token_ids == told([40, 41], 20)

    run(work())
    engine.shutdown()


def test_chat_and_questions(letters: Any) -> None:
    engine = AsyncLLM.over(scripted_engine(tokenizer=Tokenizer(letters)))
    message = [{"role": "user", "content": "hello"}]

    async def work() -> None:
        final = await last(engine.chat(message, GREEDY, "mine"))
        assert final.request_id == "mine" and final.prompt == "<s>user:hello</s><s>assistant:"
        assert final.outputs[0].token_ids == told(final.prompt_token_ids, 20)
        with pytest.raises(RequestError, match="2 conversations; expected one"):
            await last(engine.chat([message, message], GREEDY))
        with pytest.raises(TypeError, match="templat"):
            engine.chat(message, templat="x")
        stats = await engine.stats()
        assert stats.running == stats.waiting == 0 and stats.programs == 3
        assert stats.prefix_queries > 0
        assert await engine.reset_prefix_cache()
        assert (await engine.health(probe=True))[0].where == "script"
        await engine.check_health()
        assert engine.is_running and not engine.errored and not engine.is_stopped
        assert engine.get_default_sampling_params().max_tokens == 5
        assert engine.get_tokenizer() is letters

    run(work())
    engine.shutdown()


def test_stats_are_answered_while_steps_run(engine: AsyncLLM) -> None:
    script_of(engine.engine).step_seconds = 0.002

    async def work() -> None:
        stream = engine.generate([1, 2], LONG)
        await anext(stream)
        for _ in range(5):
            assert (await engine.stats()).running == 1
        with pytest.raises(RequestError, match="while requests run"):
            await engine.health(probe=True)
        await stream.aclose()
        assert (await engine.stats()).running == 0

    run(work())


def test_several_requests_are_aborted_by_their_ids(engine: AsyncLLM) -> None:
    script_of(engine.engine).step_seconds = 0.001

    async def work() -> None:
        readers = [asyncio.create_task(last(engine.generate([1], LONG, name))) for name in "abc"]
        while len(engine.engine.session.open_answers) < 3:
            await asyncio.sleep(0.001)
        await engine.abort(["a", "c", "unknown"])
        await engine.abort("b")
        assert (await engine.stats()).running == 0, "an abort is over when it returns"
        for final in await asyncio.gather(*readers):
            assert final.outputs[0].finish_reason == "abort"

    run(work())


def test_new_weights_wait_for_what_runs_and_hold_up_what_comes(engine: AsyncLLM) -> None:
    client, script = engine.engine.client, script_of(engine.engine)
    script.step_seconds = 0.001
    running: list[int] = []
    closed = threading.Event()

    def update() -> int:
        session = engine.engine.session
        with session.closed_to_new():
            closed.set()
            engine._requests.finish_all()
            running.append(len(session.open_answers))
            return client.update_weights(())

    async def work() -> None:
        first = engine.generate([1, 2], GREEDY.clone(max_tokens=100))
        await anext(first)
        version = asyncio.create_task(asyncio.to_thread(update))
        await asyncio.to_thread(closed.wait, 60)
        second = await last(engine.generate([3, 4], GREEDY))
        assert await version == second.weight_version == 1
        assert (await last(first)).weight_version == 0 and running == [0]

    run(work())


@pytest.mark.parametrize("way", ["called", "awaited", "as a task"])
def test_shutdown_works_called_and_awaited(way: str) -> None:
    engine = AsyncLLM.over(scripted_engine())
    script_of(engine.engine).step_seconds = 0.001

    async def work() -> None:
        reader = asyncio.create_task(last(engine.generate([1, 2], LONG)))
        while not script_of(engine.engine).steps:
            await asyncio.sleep(0.001)
        ending = engine.shutdown()
        if way != "called":
            await (ending if way == "awaited" else asyncio.create_task(ending))
        with pytest.raises(EngineDead, match="shut down"):
            await reader
        assert engine.errored and "shut down" in str(engine.dead_error)

    run(work())
    engine.shutdown()
    with pytest.raises(EngineDead, match="was shut down"):
        run(last(engine.generate([1], GREEDY)))


def test_threads_end_with_the_engine() -> None:
    before = threading.active_count()
    engine = AsyncLLM.over(scripted_engine())
    run(last(engine.generate([1, 2], GREEDY)))
    assert threading.active_count() > before
    del engine
    deadline = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before, "an engine that is let go leaves no thread"
