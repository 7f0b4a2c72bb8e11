"""Random mixes of a pooling model: an engine of random settings, prompts at once, random events.

`pooled_mix` runs one by its seed and compares each result with that of a plain engine, which takes
the same prompts one by one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jengine import LLM, AsyncLLM, PoolingParams
from tests.api.engines import VOCAB, WINDOW
from tests.models.tiny_models import write_tiny_native

MODELS: dict[str, dict[str, Any]] = {
    "llama": {}, "mistral": {"sliding_window": WINDOW}, "gemma3": {"sliding_window": WINDOW},
    "lfm2": {}, "qwen3_next": {},
}  # fmt: skip
POOLERS: list[dict[str, Any]] = [
    {"task": "embed"},
    {"task": "embed", "pooling_type": "MEAN"},
    {"task": "embed", "pooling_type": "CLS", "use_activation": False},
    {"task": "token_embed"},
]
SETTINGS: dict[str, list[Any]] = {
    "enable_prefix_caching": [None, True, False],
    "max_num_seqs": [2, 6],
    "num_gpu_blocks_override": [None, 20],
    "scheduling_policy": ["fcfs", "priority"],
    "async_scheduling": [None, False],
    "multiprocess": [*[None] * 5, True],
}


class Given(NamedTuple):
    """A prompt, and the result that is awaited."""

    prompt: list[int]
    params: PoolingParams
    request_id: str
    result: asyncio.Task[np.ndarray | None]


class PooledCourse:
    """What happens to an engine: its random moves."""

    def __init__(self, draw: random.Random, llm: AsyncLLM, task: Any) -> None:
        self.draw, self.llm, self.task = draw, llm, task
        self.prefixes = [self._tokens(draw.randrange(20, 120)) for _ in range(3)]
        self.given: list[Given] = []
        self.ended: set[str] = set()  # the ids of those that were aborted or cancelled

    def _tokens(self, length: int) -> list[int]:
        return [self.draw.randrange(3, VOCAB) for _ in range(length)]

    async def run(self, moves: int) -> None:
        """Random moves, until all results are there."""
        choices: list[tuple[Callable[[], Coroutine[Any, Any, None]], int]] = [
            (self.add, 6), (self.wait, 4), (self.cancel, 2), (self.abort, 2), (self.sleep, 1),
            (self.pause, 1), (self.forget, 1),
        ]  # fmt: skip
        functions, weights = zip(*choices, strict=True)
        for _ in range(moves):
            await self.draw.choices(functions, weights)[0]()
        await asyncio.gather(*(one.result for one in self.given), return_exceptions=True)

    async def add(self) -> None:
        """Some prompts come."""
        for _ in range(self.draw.choice([1, 3, 8])):
            prompt = self._tokens(self.draw.choice([1, 5, 40, 130]))
            if self.draw.random() < 0.6:
                prompt = [*self.draw.choice(self.prefixes), *prompt][:250]
            params = PoolingParams(
                task=self.task,
                skip_reading_prefix_cache=self.draw.choice([None, True]),
                use_activation=self.draw.choice([None, True, False]),
            )
            name = f"p{len(self.given)}"
            reading = asyncio.create_task(self._read(prompt, params, name))
            self.given.append(Given(prompt, params, name, reading))

    async def _read(self, prompt: list[int], params: PoolingParams, name: str) -> Any:
        priority = self.draw.randrange(3)
        found = [one async for one in self.llm.encode(prompt, params, name, priority=priority)]
        return found[-1].outputs.data

    async def wait(self) -> None:
        """One of the results comes, or some time passes."""
        if self.draw.random() < 0.5 and self.given:
            await asyncio.wait([self.draw.choice(self.given).result])
        await asyncio.sleep(0.01)

    def _some(self) -> list[Given]:
        some = self.draw.sample(self.given, min(len(self.given), self.draw.choice([1, 3])))
        self.ended.update(one.request_id for one in some)
        return some

    async def cancel(self) -> None:
        """Some callers leave."""
        for one in self._some():
            one.result.cancel()

    async def abort(self) -> None:
        """Some requests end."""
        await self.llm.abort([one.request_id for one in self._some()])

    async def sleep(self) -> None:
        """Sleep, prompts that come meanwhile, and waking."""
        mode: Any = self.draw.choice(["abort", "wait", "keep"])
        if mode == "abort":
            self.ended.update(one.request_id for one in self.given)
        await self.llm.sleep(self.draw.choice([0, 1, 2]), mode)
        if self.draw.random() < 0.5:
            await self.add()
        if not await self.llm.wake_up():
            await self.llm.reload_weights()
            assert await self.llm.wake_up()

    async def pause(self) -> None:
        """No steps for a while."""
        await self.llm.pause_generation(mode="keep", clear_cache=self.draw.random() < 0.5)
        await self.add()
        await self.cancel()
        await self.llm.resume_generation()

    async def forget(self) -> None:
        """Cached prefixes are forgotten, also of those that run."""
        await self.llm.reset_prefix_cache(reset_running_requests=self.draw.random() < 0.5)


def pooled_mix(seed: int, folder: Path, moves: int = 30) -> int:
    """Run the mix of this seed and check its results. Returns how many there were."""
    draw = random.Random(seed)
    family = draw.choice(list(MODELS))
    common: dict[str, Any] = {
        "skip_tokenizer_init": True, "enforce_eager": True, "show_progress": False,
        "max_model_len": 256, "max_num_batched_tokens": 64, "runner": "pooling",
        "compilation_config": {"prefill_tokens": [64]}, "pooler_config": draw.choice(POOLERS),
    }  # fmt: skip
    if family in ("lfm2", "qwen3_next"):
        common["mamba_block_size"] = 32
    drawn = {name: draw.choice(values) for name, values in SETTINGS.items()}
    settings = {name: value for name, value in drawn.items() if value is not None}
    model = write_tiny_native(folder, family, max_position_embeddings=1024, **MODELS[family])

    async def work() -> PooledCourse:
        async with AsyncLLM(model, **common, **settings, enable_sleep_mode=True) as llm:
            course = PooledCourse(draw, llm, common["pooler_config"]["task"])
            await course.run(moves)
            await llm.wait_for_requests_to_drain(60)
            stats = await llm.stats()
            assert (stats.running, stats.waiting, stats.cache_usage) == (0, 0, 0)
            return course

    course = asyncio.run(work())
    count = 0
    with LLM(model, **common, enable_prefix_caching=False, async_scheduling=False) as plain:
        for one in course.given:
            if one.request_id in course.ended and (one.result.cancelled() or has_none(one)):
                continue
            (expected,) = plain.encode(
                [one.prompt], one.params, pooling_task=course.task, use_tqdm=False
            )
            where = f"{family} {settings} {common['pooler_config']} {one.prompt} {one.params}"
            np.testing.assert_allclose(
                one.result.result(), expected.outputs.data, atol=1e-4, rtol=1e-4, err_msg=where
            )
            count += 1
    return count


def has_none(given: Given) -> bool:
    """Whether a request that was aborted has no result."""
    return given.result.exception() is not None or not len(given.result.result())
