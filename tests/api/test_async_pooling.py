"""Pooling in asyncio programs, and with the core in a process of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from jengine import LLM, AsyncLLM, PoolingParams
from tests.api.test_pooling import NO_BAR, PROMPTS, SMALL, cosines, decoder, hidden_states

__all__ = ["decoder"]  # a fixture


async def pooled(engine: AsyncLLM, ids: list[int], params: PoolingParams | None = None) -> Any:
    """The one output of a prompt."""
    outputs = [one async for one in engine.encode(ids, params)]
    assert len(outputs) == 1
    return outputs[0]


def test_requests_at_once(decoder: tuple[Path, Any]) -> None:
    folder, model = decoder

    async def work() -> list[Any]:
        async with AsyncLLM(folder, **SMALL) as engine:
            with pytest.raises(ValueError, match="Matryoshka"):
                await pooled(engine, [5], PoolingParams(dimensions=4))
            return await asyncio.gather(*(pooled(engine, ids) for ids in PROMPTS))

    found = [one.outputs.data for one in asyncio.run(work())]
    expected = [hidden_states(model, ids)[-1] for ids in PROMPTS]
    assert cosines(found, expected).min() > 0.99999


@pytest.mark.slow
def test_a_core_in_another_process(decoder: tuple[Path, Any]) -> None:
    folder, model = decoder
    with LLM(folder, multiprocess=True, pooler_config={"task": "token_embed"}, **SMALL) as llm:
        found = llm.encode(PROMPTS[:3], pooling_task="token_embed", **NO_BAR)
    for ids, one in zip(PROMPTS, found, strict=False):
        assert cosines(one.outputs.data, hidden_states(model, ids)).min() > 0.99999
