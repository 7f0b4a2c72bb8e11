"""Engines over several devices sleep and wake: tensor parallel, in stages, and in replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import pytest

from jengine.runner import sleep
from tests.api.engines import answers, random_prompts, tiny_engine
from tests.api.few_requests import PARAMS, PROMPTS

MESHES: list[dict[str, Any]] = [
    {"tensor_parallel_size": 2},
    {"pipeline_parallel_size": 2},
    {"data_parallel_size": 2},
]


@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: next(iter(mesh)))
def test_all_devices_give_their_memory_back(
    folder: Path, mesh: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with tiny_engine(folder, enable_sleep_mode=True, **mesh) as llm:
        expected = answers(llm.generate(PROMPTS, PARAMS))
        loaded = [runner.loaded for runner in llm.engine.runners]
        for level in (1, 2):
            queued = llm.enqueue(PROMPTS, PARAMS)
            llm.sleep(level, "keep")
            assert len(queued) == len(PROMPTS)
            assert not any(one.leaves for one in loaded)
            assert all(one.asleep.tags == {"weights", "kv_cache"} for one in loaded)
            assert llm.wake_up() == (level == 1)
            if level == 2:
                llm.reload_weights()
                assert llm.wake_up()
            assert answers(llm.wait_for_completion()) == expected

        # As on GPUs, where weights move to another memory.
        monkeypatch.setattr(sleep, "is_host", lambda _: False)
        llm.sleep(1)
        kept = [leaf for one in loaded for leaf in one.asleep.weights.leaves]  # type: ignore[union-attr]
        assert {leaf.sharding.memory_kind for leaf in kept} == {sleep.HOST}
        assert llm.wake_up()
        kinds = {leaf.sharding.memory_kind for one in loaded for leaf in one.leaves}
        assert kinds == {jax.devices()[0].default_memory().kind}
        assert answers(llm.generate(PROMPTS, PARAMS)) == expected


def test_running_requests_are_kept(folder: Path) -> None:
    """Also where plans are still in the stages."""
    prompts = random_prompts(30, 60, 90)
    with tiny_engine(folder, pipeline_parallel_size=2, enable_sleep_mode=True) as llm:
        params = PARAMS[0].clone(max_tokens=30)
        expected = answers(llm.generate(prompts, params))
        client = llm.engine.in_process
        llm.enqueue(prompts, params)
        for _ in range(6):
            llm.engine.session.step()
        llm.sleep(1, "keep")
        assert not client.core.in_flight  # type: ignore[attr-defined]
        assert llm.wake_up()
        assert answers(llm.wait_for_completion()) == expected
