"""AsyncLLM.pause_generation and resume_generation, over a scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from jengine import AsyncLLM, RequestOutput, SamplingParams
from jengine.errors import ConfigError, EngineDead
from tests.api.async_reading import last, run
from tests.engine.scripted import script_of, scripted_engine, told

TOKENS = 100
PARAMS = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)


@pytest.fixture
def engine() -> Iterator[AsyncLLM]:
    llm = AsyncLLM.over(scripted_engine())
    script_of(llm.engine).step_seconds = 0.02  # tests let go of it before they read answers
    yield llm
    llm.shutdown()


async def reading(engine: AsyncLLM, prompt: list[int], name: str) -> asyncio.Task[RequestOutput]:
    """A task that reads an answer whose first tokens have come."""
    stream = engine.generate(prompt, PARAMS, name)
    await anext(stream)
    return asyncio.create_task(last(stream))


async def closed(engine: AsyncLLM) -> None:
    """Return when a pause that waits for open requests holds up those that come."""
    async with asyncio.timeout(60):
        while not engine.engine.session._entry.locked():
            await asyncio.sleep(0.001)


def hurry(engine: AsyncLLM) -> None:
    """Let steps take no time from now on."""
    script_of(engine.engine).step_seconds = 0.0


async def stands_still(engine: AsyncLLM) -> bool:
    steps = script_of(engine.engine).steps
    await asyncio.sleep(0.02)
    return script_of(engine.engine).steps == steps


@pytest.mark.parametrize("clear_cache", [True, False])
def test_kept_requests_go_on_with_new_weights(engine: AsyncLLM, clear_cache: bool) -> None:
    async def work() -> None:
        first = await reading(engine, [1, 2], "first")
        await engine.pause_generation(mode="keep", clear_cache=clear_cache)
        assert await engine.is_paused() and await stands_still(engine)
        second = asyncio.create_task(last(engine.generate([3, 4], PARAMS)))
        assert await stands_still(engine) and not first.done()
        stats = await engine.stats()
        assert (stats.running, stats.waiting) == ((0, 2) if clear_cache else (1, 1))
        assert engine.engine.in_process.update_weights(()) == 1
        assert engine.weights_version == (await engine.stats()).weights_version == 1
        hurry(engine)
        await engine.resume_generation()
        assert not await engine.is_paused()
        assert (await first).outputs[0].token_ids == told([1, 2], TOKENS)
        assert (await second).outputs[0].token_ids == told([3, 4], TOKENS)
        assert (await first).weight_version == (await second).weight_version == 1

    run(work())


def test_open_requests_are_aborted_and_later_ones_wait(engine: AsyncLLM) -> None:
    async def work() -> None:
        first = await reading(engine, [1, 2], "first")
        await engine.pause_generation()
        assert (await first).outputs[0].finish_reason == "abort"
        second = asyncio.create_task(last(engine.generate([3, 4], PARAMS)))
        assert await stands_still(engine)
        hurry(engine)
        await engine.resume_generation()
        assert (await second).outputs[0].token_ids == told([3, 4], TOKENS)

    run(work())


def test_open_requests_are_finished_while_later_ones_wait(engine: AsyncLLM) -> None:
    async def work() -> None:
        first = await reading(engine, [1, 2], "first")
        pausing = asyncio.create_task(engine.pause_generation(mode="wait"))
        await closed(engine)
        second = asyncio.create_task(last(engine.generate([3, 4], PARAMS)))
        hurry(engine)
        await pausing
        assert (await first).outputs[0].token_ids == told([1, 2], TOKENS)
        assert await stands_still(engine) and script_of(engine.engine).most_rows == 1
        await engine.resume_generation()
        assert (await second).outputs[0].token_ids == told([3, 4], TOKENS)

    run(work())


def test_requests_that_were_kept_may_be_aborted_after_all(engine: AsyncLLM) -> None:
    async def work() -> None:
        first = await reading(engine, [1, 2], "first")
        second = await reading(engine, [3, 4], "second")
        await engine.pause_generation(mode="keep")
        await engine.abort("first")
        await engine.pause_generation(mode="abort")
        for ended in (first, second):
            assert (await ended).outputs[0].finish_reason == "abort"
        assert await engine.is_paused() and await stands_still(engine)

    run(work())


def test_weights_do_not_wait_for_requests_that_are_kept(engine: AsyncLLM) -> None:
    async def work() -> None:
        first = await reading(engine, [1, 2], "first")
        waiting = asyncio.create_task(asyncio.to_thread(engine._requests.finish_all))
        await asyncio.sleep(0.01)
        await engine.pause_generation(mode="keep")
        await waiting
        assert not first.done()
        hurry(engine)
        await engine.resume_generation()
        await first

    run(work())


def test_shutdown_and_mistakes(engine: AsyncLLM) -> None:
    async def work() -> None:
        with pytest.raises(ConfigError, match="mode='stop': expected one of 'abort', 'wait'"):
            await engine.pause_generation(mode="stop")  # type: ignore[arg-type]
        assert not await engine.is_paused()
        kept = await reading(engine, [1, 2], "kept")
        await engine.pause_generation(mode="keep")
        await engine.shutdown()
        with pytest.raises(EngineDead, match="shut down"):
            await kept
        for call in (engine.pause_generation, engine.resume_generation):
            with pytest.raises(EngineDead):
                await call()

    run(work())


def test_a_shutdown_does_not_wait_for_requests_that_a_pause_waits_for(engine: AsyncLLM) -> None:
    async def work() -> None:
        open_one = await reading(engine, [1, 2], "open")
        pausing = asyncio.create_task(engine.pause_generation(mode="wait", clear_cache=False))
        await closed(engine)
        await engine.shutdown()
        with pytest.raises(EngineDead, match="shut down"):
            await open_one
        await pausing

    run(work())


def test_a_reader_that_leaves_ends_the_wait_for_its_request(engine: AsyncLLM) -> None:
    async def work() -> None:
        stays, leaves = [await reading(engine, [n], str(n)) for n in (1, 2)]
        pausing = asyncio.create_task(engine.pause_generation(mode="wait"))
        await closed(engine)
        leaves.cancel()
        hurry(engine)
        await pausing
        assert (await stays).outputs[0].token_ids == told([1], TOKENS)

    run(work())
