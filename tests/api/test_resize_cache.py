"""llm.resize_cache: another size while the engine runs, with what fits of the cached prefixes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

import jengine
from jengine import SamplingParams
from jengine.errors import ConfigError, RequestError
from tests.api.engines import answers, is_idle, random_prompts, tiny_engine

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
LARGE, SMALL = 3_000_000, 1_600_000


@pytest.fixture(scope="module")
def llm(full_folder: Path) -> Iterator[jengine.LLM]:
    engine = tiny_engine(full_folder, "greedy", kv_cache_memory_bytes=LARGE, enable_sleep_mode=True)
    yield engine
    assert is_idle(engine)
    engine.shutdown()


def cache_bytes(llm: jengine.LLM) -> int:
    return sum(array.nbytes for array in jax.tree.leaves(llm.engine.loaded.state.caches))


@pytest.mark.slow
def test_prefixes_stay_as_far_as_they_fit(llm: jengine.LLM) -> None:
    prompts = random_prompts(100, 200, 150)
    expected = answers(llm.generate(prompts, GREEDY))
    blocks, before = llm.engine.cache.num_blocks, cache_bytes(llm)
    step = {key: entry.compiles for key, entry in llm.ledger.entries.items()}
    llm.resize_cache(SMALL)
    assert cache_bytes(llm) <= SMALL < before
    assert llm.engine.cache.num_blocks < blocks and llm.memory().parts
    assert {key: one.compiles for key, one in llm.ledger.entries.items()} == {
        key: count + 1 for key, count in step.items()
    }
    llm.engine.in_process.core.scheduler.cache.check()
    found = llm.generate(prompts, GREEDY)
    assert answers(found) == expected
    hits = [output.num_cached_tokens for output in found]
    assert hits[0] == 96, "its blocks are the first"
    llm.resize_cache(f"{LARGE}")
    assert llm.engine.cache.num_blocks == blocks and cache_bytes(llm) == before
    again = llm.generate(prompts, GREEDY)
    assert answers(again) == expected
    assert [output.num_cached_tokens for output in again] == [96, 192, 144]
    llm.sleep(1)
    assert llm.wake_up() and cache_bytes(llm) == before
    assert answers(llm.generate(prompts, GREEDY)) == expected


def test_running_requests_go_on(llm: jengine.LLM) -> None:
    prompts = random_prompts(60, 70, 80, seed=4)
    params = GREEDY.clone(max_tokens=60)
    expected = answers(llm.generate(prompts, params))
    llm.enqueue(prompts, params)
    for _ in range(8):
        llm.engine.session.step()
    llm.resize_cache(SMALL)
    llm.engine.session.step()
    llm.resize_cache(LARGE)
    assert answers(llm.wait_for_completion()) == expected


def test_what_is_refused(llm: jengine.LLM) -> None:
    before = llm.engine.cache.num_blocks
    with pytest.raises(RequestError, match="one request as long as the context"):
        llm.resize_cache(1000)
    with pytest.raises(RequestError, match=r"were? free|are free"):
        llm.resize_cache("500000G")
    with pytest.raises(ConfigError, match="num_bytes='much'"):
        llm.resize_cache("much")
    assert llm.engine.cache.num_blocks == before
    assert llm.generate([5, 6], GREEDY)[0].finished
