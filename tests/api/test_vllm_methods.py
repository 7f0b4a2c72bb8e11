"""Methods that vLLM's scripts call on an LLM: profiles, the world's size, waiting for outputs."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path

import pytest

import jengine
from jengine import AsyncLLM, RequestOutput, SamplingParams
from jengine.errors import ConfigError, RequestError
from tests.api.engines import MAX_MODEL_LEN, tiny_engine_settings

PARAMS = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)


@pytest.mark.parametrize("config", [{"profiler": "jax", "dir": "{}"},
                                    {"profiler": "torch", "torch_profiler_dir": "{}"}])  # fmt: skip
def test_a_profile_is_written_where_the_config_says(
    llm: jengine.LLM, tmp_path: Path, config: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {key: value.format(tmp_path) for key, value in config.items()}
    given = jengine.EngineArgs("demo", profiler_config=config).profiler_config
    monkeypatch.setattr(llm.engine.args, "profiler_config", given)
    llm.start_profile("warm")
    llm.generate([[5, 6, 7]], PARAMS)
    llm.stop_profile()
    asyncio.run(profiled_again(AsyncLLM.over(llm.engine)))
    for name in ("warm", "again"):
        assert list((tmp_path / name).rglob("*.xplane.pb"))


async def profiled_again(engine: AsyncLLM) -> None:
    await engine.start_profile("again")
    await engine.stop_profile()


def test_what_is_in_memory_is_told_for_pprof(llm: jengine.LLM) -> None:
    (found,) = llm.call_workers("memory_profile")
    assert b"bytes" in gzip.decompress(found)


def test_a_profile_needs_a_folder(llm: jengine.LLM) -> None:
    with pytest.raises(ConfigError, match=r"profiler_config=\{'profiler': 'jax', 'dir': folder\}"):
        llm.start_profile()


def test_the_worlds_size_is_that_of_the_mesh(llm: jengine.LLM) -> None:
    assert llm.get_world_size() == llm.get_world_size(include_dp=False) == 1


def test_waiting_for_outputs_of_a_type(llm: jengine.LLM) -> None:
    llm.enqueue([[5, 6, 7]], PARAMS)
    with pytest.raises(RequestError, match="every output is a RequestOutput"):
        llm.wait_for_completion(int)
    (output,) = llm.wait_for_completion(RequestOutput)
    assert output.finished and llm.wait_for_completion((RequestOutput, int)) == []


def test_engine_args_make_an_engine(full_folder: Path) -> None:
    args = jengine.EngineArgs(full_folder, **tiny_engine_settings(enforce_eager=False))
    args.enforce_eager = True
    with jengine.LLM.from_engine_args(engine_args=args) as llm:
        assert llm.max_model_len == MAX_MODEL_LEN and llm.engine.args.enforce_eager
