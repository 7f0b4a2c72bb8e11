"""AsyncLLM: many requests at once, leaving at any time, and errors that reach everybody."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from transformers import PreTrainedTokenizerFast

import jengine
from jengine import AsyncLLM, RequestOutput, RequestOutputKind, SamplingParams
from jengine.assembly.settings.args import EngineArgs
from jengine.engine.core import EngineCore
from jengine.errors import EngineDead, RequestError
from tests.api.async_reading import last
from tests.api.engines import answers, random_prompts, tiny_engine_settings
from tests.engine.process.cores import eventually

PROMPTS = random_prompts(9, 40, 17, 60, seed=2)
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
LONG = GREEDY.clone(max_tokens=600)
DELTA = GREEDY.clone(output_kind=RequestOutputKind.DELTA)
FINAL = GREEDY.clone(output_kind=RequestOutputKind.FINAL_ONLY)


def make(folder: Path) -> AsyncLLM:
    """An AsyncLLM with the same programs as the shared engines."""
    return AsyncLLM(folder, **tiny_engine_settings())


@pytest.fixture(scope="module")
def shared(full_folder: Path) -> AsyncLLM:
    return make(full_folder)


@pytest.fixture
def engine(shared: AsyncLLM) -> Iterator[AsyncLLM]:
    """An engine that the test leaves idle; each test has an event loop of its own."""
    yield shared
    assert waiting(shared) == 0


@pytest.fixture
def own(full_folder: Path) -> AsyncLLM:
    """An engine that the test may break."""
    return make(full_folder)


@pytest.fixture
def expected(llm: jengine.LLM) -> list[list[int]]:
    return [answer[0] for answer in answers(llm.generate(PROMPTS, GREEDY))]


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


def waiting(engine: AsyncLLM) -> int:
    """Requests of any kind that the engine still knows."""
    session, core = engine.engine.session, cast(EngineCore, engine.engine.in_process.core)
    scheduler = core.scheduler
    return scheduler.num_running + scheduler.num_waiting + len(session.open_answers)


async def until_idle(engine: AsyncLLM) -> None:
    while waiting(engine):
        await asyncio.sleep(0.001)


def test_concurrent_requests_get_their_own_answers(engine: AsyncLLM, expected: Any) -> None:
    async def work() -> None:
        finals = await asyncio.gather(*(last(engine.generate(p, GREEDY)) for p in PROMPTS))
        assert [final.outputs[0].token_ids for final in finals] == expected
        assert waiting(engine) == 0

    run(work())


def test_fifty_requests_at_once(engine: AsyncLLM, expected: Any) -> None:
    async def one(number: int) -> None:
        await asyncio.sleep(number % 7 * 0.002)
        index = number % len(PROMPTS)
        kind = (GREEDY, DELTA, FINAL)[number % 3]
        tokens: list[int] = []
        async for output in engine.generate(PROMPTS[index], kind, f"request {number}"):
            assert output.request_id == f"request {number}"
            new = output.outputs[0].token_ids
            tokens = tokens + new if kind is DELTA else new
        assert tokens == expected[index]

    async def work() -> None:
        await asyncio.gather(*(one(number) for number in range(50)))
        assert waiting(engine) == 0

    run(work())


def test_kinds_of_output(engine: AsyncLLM, expected: Any) -> None:
    async def work() -> None:
        seen = {}
        for kind in (GREEDY, DELTA, FINAL):
            outputs = [output async for output in engine.generate(PROMPTS[0], kind)]
            assert [output.finished for output in outputs[:-1]] == [False] * (len(outputs) - 1)
            seen[kind.output_kind] = [output.outputs[0].token_ids for output in outputs]
        cumulative, delta, final = seen.values()
        # Steps whose outputs were not read in time come as one.
        lengths = [len(tokens) for tokens in cumulative]
        assert lengths == sorted(set(lengths)) and lengths[-1] == 10
        assert cumulative == [expected[0][:length] for length in lengths]
        assert [token for tokens in delta for token in tokens] == expected[0]
        assert all(delta)
        assert final == [expected[0]]

    run(work())


def test_abort_by_id_gives_a_last_output(engine: AsyncLLM) -> None:
    async def work() -> None:
        outputs = []
        async for output in engine.generate(PROMPTS[0], LONG, "mine"):
            outputs.append(output)
            if len(outputs) == 3:
                await engine.abort("mine")
        assert outputs[-1].finished
        assert outputs[-1].outputs[0].finish_reason == "abort"
        assert 3 <= len(outputs[-1].outputs[0].token_ids) < 600
        await engine.abort("mine")
        await engine.abort("nobody")
        assert waiting(engine) == 0

    run(work())


def test_cancelling_the_reader_aborts_the_request(engine: AsyncLLM, expected: Any) -> None:
    async def work() -> None:
        readers = [asyncio.create_task(last(engine.generate(p, LONG))) for p in PROMPTS]
        while waiting(engine) < 2 * len(PROMPTS):
            await asyncio.sleep(0.001)
        readers[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await readers[0]
        assert len(engine.engine.session.open_answers) == len(PROMPTS) - 1
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await until_idle(engine)
        assert (await last(engine.generate(PROMPTS[0], GREEDY))).outputs[0].token_ids == expected[0]

    run(work())


def test_cancelling_at_any_moment_leaves_nothing(engine: AsyncLLM, expected: Any) -> None:
    async def work() -> None:
        for turns in range(40):
            reader = asyncio.create_task(last(engine.generate(PROMPTS[0], LONG)))
            for _ in range(turns):
                await asyncio.sleep(0)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            await until_idle(engine)
        assert (await last(engine.generate(PROMPTS[0], GREEDY))).outputs[0].token_ids == expected[0]

    run(work())


@pytest.mark.parametrize("kind", [jengine.LLM, AsyncLLM])
def test_the_tokenizer_of_grammars_is_made_before_the_first(
    kind: Any, full_folder: Path, letters: PreTrainedTokenizerFast
) -> None:
    """Making it holds the GIL: 0.3 s for 49,152 tokens, in which no stream went on."""
    engine = kind(full_folder, **tiny_engine_settings(tokenizer=letters))
    eventually(lambda: engine.engine.here.grammars._tokenizer is not None)
    ended = engine.shutdown()
    if inspect.isawaitable(ended):
        run(ended)


def test_leaving_the_loop_aborts_the_request(engine: AsyncLLM) -> None:
    async def work() -> None:
        stream = engine.generate(PROMPTS[0], LONG)
        async for _ in stream:
            break
        await stream.aclose()
        await until_idle(engine)
        async for _ in engine.generate(PROMPTS[0], LONG):
            break  # the event loop closes the abandoned generator
        await until_idle(engine)

    run(work())


def test_bad_requests_do_not_disturb_others(engine: AsyncLLM, expected: Any) -> None:
    async def work() -> None:
        good = asyncio.create_task(last(engine.generate(PROMPTS[0], GREEDY, "good")))
        await asyncio.sleep(0.01)
        for prompt in ([], [10**6], "text"):
            with pytest.raises(RequestError):
                await last(engine.generate(prompt, GREEDY))
        assert (await good).outputs[0].token_ids == expected[0]
        assert waiting(engine) == 0

    run(work())


def test_an_id_in_use_is_refused(engine: AsyncLLM) -> None:
    async def work() -> None:
        first = asyncio.create_task(last(engine.generate(PROMPTS[0], GREEDY, "same")))
        await asyncio.sleep(0)
        second = asyncio.create_task(last(engine.generate(PROMPTS[1], GREEDY, "same")))
        results = await asyncio.gather(first, second, return_exceptions=True)
        assert results[0].finished
        assert isinstance(results[1], RequestError) and "'same'" in str(results[1])

    run(work())


def test_an_id_that_looks_like_a_completions_is_an_id_of_its_own(
    engine: AsyncLLM, expected: Any
) -> None:
    several = SamplingParams(n=2, seed=1, max_tokens=5)

    async def work() -> None:
        alone = await last(engine.generate(PROMPTS[1], several, "x"))
        first = asyncio.create_task(last(engine.generate(PROMPTS[0], GREEDY, "0_x")))
        await asyncio.sleep(0)
        second = await last(engine.generate(PROMPTS[1], several, "x"))
        assert (await first).outputs[0].token_ids == expected[0]
        assert answers([second]) == answers([alone])

    run(work())


def test_given_ids_and_numbered_ones_do_not_clash(engine: AsyncLLM, expected: Any) -> None:
    next_number = next(engine.engine.session._numbers) + 1

    async def work() -> None:
        ids = [str(next_number), None, str(next_number + 2), None]
        readers = [last(engine.generate(p, GREEDY, i)) for p, i in zip(PROMPTS, ids, strict=True)]
        finals = await asyncio.gather(*readers)
        assert [final.outputs[0].token_ids for final in finals] == expected
        assert len({final.request_id for final in finals}) == 4
        for bad in (5, "", b"x"):
            with pytest.raises(RequestError, match=r"request_id=.*expected a string"):
                await last(engine.generate(PROMPTS[0], GREEDY, bad))  # type: ignore[arg-type]

    run(work())


def test_an_abort_ends_all_completions(engine: AsyncLLM) -> None:
    params = LONG.clone(n=3, temperature=1.0, seed=3)

    async def work() -> None:
        outputs = []
        async for output in engine.generate(PROMPTS[0], params, "three"):
            outputs.append(output)
            if len(outputs) == 6:
                await engine.abort("three")
        final = outputs[-1]
        assert final.finished and len(final.outputs) == 3
        assert [answer.finish_reason for answer in final.outputs] == ["abort"] * 3
        assert [answer.index for answer in final.outputs] == [0, 1, 2]

    run(work())


def test_a_failed_step_reaches_every_waiter(own: AsyncLLM) -> None:
    async def work() -> None:
        core = own.engine.in_process.core
        submit, steps = core.executor.submit, 0

        def failing(plan: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps > 5:
                raise ConnectionError("the device is gone")
            return submit(plan)

        core.executor.submit = failing  # type: ignore[method-assign]
        readers = (last(own.generate(prompt, LONG)) for prompt in PROMPTS)
        errors = await asyncio.gather(*readers, return_exceptions=True)
        assert all(isinstance(error, EngineDead) for error in errors)
        assert all("the device is gone" in str(error) for error in errors)
        with pytest.raises(EngineDead, match="has stopped"):
            await last(own.generate(PROMPTS[0], GREEDY))
        await own.shutdown()

    run(work())


def test_shutdown_while_busy_ends_every_waiter(own: AsyncLLM) -> None:
    async def work() -> None:
        readers = [asyncio.create_task(last(own.generate(p, LONG))) for p in PROMPTS]
        while waiting(own) < 2 * len(PROMPTS):
            await asyncio.sleep(0.001)
        await own.shutdown()
        results = await asyncio.gather(*readers, return_exceptions=True)
        assert all(isinstance(result, EngineDead) for result in results)
        assert all("shut down" in str(result) for result in results)
        await own.shutdown()
        with pytest.raises(EngineDead, match=r"was shut down\. Create a new one"):
            await last(own.generate(PROMPTS[0], GREEDY))

    run(work())


def test_requests_that_wait_to_enter_hear_of_the_shutdown(own: AsyncLLM) -> None:
    async def work() -> None:
        readers = [asyncio.create_task(last(own.generate(p, LONG))) for p in PROMPTS]
        closing = asyncio.create_task(own.shutdown())
        results = await asyncio.gather(*readers, return_exceptions=True)
        await closing
        assert all(isinstance(result, EngineDead) for result in results)
        with pytest.raises(EngineDead):
            await own.abort("anything")

    run(work())


def test_one_engine_may_serve_one_event_loop_after_another(engine: AsyncLLM, expected: Any) -> None:
    async def work() -> list[RequestOutput]:
        return await asyncio.gather(*(last(engine.generate(p, GREEDY)) for p in PROMPTS))

    for _ in range(2):
        assert [final.outputs[0].token_ids for final in run(work())] == expected


def test_from_engine_args(full_folder: Path) -> None:
    args = EngineArgs(model=full_folder, **tiny_engine_settings())
    engine = AsyncLLM.from_engine_args(args)
    assert run(last(engine.generate(PROMPTS[0], GREEDY))).finished
    with pytest.raises(RequestError, match="no tokenizer"):
        engine.get_tokenizer()
    run(engine.shutdown())
