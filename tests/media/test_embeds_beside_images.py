"""An engine that takes images and embeddings in prompts: one batch of both, answered as each is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jengine
from jengine import SamplingParams
from jengine.errors import RequestError
from tests.api.engines import answers, is_idle, rebuilt, tiny_engine
from tests.media.tiny_vision import BEGIN, END, IMAGE, picture, prompt_of, write_vision
from tests.models.tiny_models import write_tiny_native

GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, logprobs=3)
TEXTS = [list(range(3, 43)), list(range(60, 3, -1))]
PICTURES = [picture(30, 50), picture(64, 41)]
# Gemma scales embeddings that are looked up, not those of images, whose tokens see later ones;
# Qwen rotates by planes, and Qwen3-VL adds to the first layers' outputs.
FAMILIES = ["gemma3", *(pytest.param(f, marks=pytest.mark.slow) for f in ("qwen2_vl", "qwen3_vl"))]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vision(tmp_path_factory.mktemp(family), family)


@pytest.fixture(scope="module")
def seen(family: str) -> list[Any]:
    ids = [[5, BEGIN, IMAGE, END, 7], [BEGIN, IMAGE, END, *range(10, 30)]]
    return [
        {"prompt_token_ids": prompt_of(family, one), "multi_modal_data": {"image": [image]}}
        for one, image in zip(ids, PICTURES, strict=True)
    ]


@pytest.fixture(scope="module")
def expected(folder: Path, seen: list[Any]) -> list[Any]:
    """The answers of an engine whose prompts are tokens and images alone."""
    with tiny_engine(folder) as llm:
        return llm.generate([*TEXTS, *seen], GREEDY)


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[jengine.LLM]:
    engine = tiny_engine(folder, enable_prompt_embeds=True)
    yield engine
    assert is_idle(engine)
    engine.shutdown()


@pytest.fixture(scope="module")
def given(llm: jengine.LLM) -> list[Any]:
    """The texts as the embeddings of their tokens."""
    table = np.asarray(llm.engine.loaded.parameters()["embed.weight"], np.float32)
    return [{"prompt_embeds": table[text]} for text in TEXTS]


def same(found: list[Any], expected: list[Any]) -> None:
    assert answers(found) == answers(expected)
    for one, other in zip(found, expected, strict=True):
        mine, theirs = one.outputs[0].logprobs_array, other.outputs[0].logprobs_array
        # Their programs round as one does, but not as the older emitter of tests compiles them.
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


def test_each_alone(
    llm: jengine.LLM, given: list[Any], seen: list[Any], expected: list[Any]
) -> None:
    for prompt, answer in zip([*given, *seen], expected, strict=True):
        same(llm.generate([prompt], GREEDY), [answer])


def test_one_batch_of_both(
    llm: jengine.LLM, given: list[Any], seen: list[Any], expected: list[Any]
) -> None:
    llm.reset_prefix_cache()
    prompts = [given[0], seen[0], TEXTS[1], seen[1], given[1]]
    same(llm.generate(prompts, GREEDY), [expected[i] for i in (0, 2, 1, 3, 1)])
    (entry,) = [one for one in llm.ledger.entries.values() if one.features.embeds]
    assert entry.hits, "one program runs all of them"


def test_prefixes_of_both_are_found(
    llm: jengine.LLM, given: list[Any], seen: list[Any], expected: list[Any]
) -> None:
    llm.reset_prefix_cache()
    same(llm.generate([*given, *seen], GREEDY), expected)
    again = llm.generate([*given, *seen], GREEDY)
    same(again, expected)
    block = llm.engine.cache.block_size
    for one in again:
        assert one.num_cached_tokens == (len(one.prompt_token_ids) - 1) // block * block > 0
    (text,) = llm.generate([[0] * len(TEXTS[0])], GREEDY)
    assert text.num_cached_tokens == 0, "the ids that stand for rows are no content"


def test_chunks_and_preemption(llm: jengine.LLM, given: list[Any], seen: list[Any]) -> None:
    longer, prompts = GREEDY.clone(max_tokens=60, logprobs=None), [*given, *seen]
    whole = answers(llm.generate(prompts, longer))
    with rebuilt(llm, num_blocks=20, long_prefill_token_threshold=32) as small:
        assert answers(small.generate(prompts, longer)) == whole
        assert small.stats().preemptions > 0


@pytest.mark.slow
def test_another_model_drafts(
    folder: Path, seen: list[Any], expected: list[Any], tmp_path: Path
) -> None:
    """What images stand for is not shown to it: its drafts may be worse, answers are the same."""
    draft = write_tiny_native(tmp_path, "llama", vocab_size=97, max_position_embeddings=1024)
    method = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": 2}
    settings = {"speculative_config": {**method, "adaptive": False}}
    sizes = {"compilation_config": {"decode_rows": [32]}}
    with tiny_engine(folder, enable_prompt_embeds=True, **settings, **sizes) as llm:
        table = np.asarray(llm.engine.loaded.parameters()["embed.weight"], np.float32)
        prompts = [{"prompt_embeds": table[TEXTS[0]]}, TEXTS[1], *seen]
        same(llm.generate(prompts, GREEDY), expected)
        assert llm.engine.in_process.core.counts().drafts.drafted > 0


def test_one_prompt_of_both_is_refused(llm: jengine.LLM, given: list[Any], seen: list[Any]) -> None:
    with pytest.raises(RequestError, match="multi_modal_data with prompt_embeds"):
        llm.generate([{**given[0], "multi_modal_data": seen[0]["multi_modal_data"]}], GREEDY)
