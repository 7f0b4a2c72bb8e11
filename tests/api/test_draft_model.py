"""A draft model drafts on the device; answers are those of plain decoding, however good it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jengine
from jengine import SamplingParams
from jengine.errors import CheckpointError, ConfigError
from tests.api.engines import answers, is_idle, random_prompts, rebuilt, tiny_engine
from tests.api.test_speculation import params, same
from tests.marks import slow
from tests.models.tiny_models import DISTINCT, write_tiny_native

DRAFTS = 3
SIZES = {"max_position_embeddings": 1024, "vocab_size": 128}
PROMPTS = random_prompts(1, 15, 16, 17, 33, 60, 100, 130)


def drafting(draft: Path, **more: Any) -> dict[str, Any]:
    method = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": DRAFTS}
    return {
        "speculative_config": {**method, "adaptive": False, **more},
        "compilation_config": {"decode_rows": [32]},  # 8 requests of 1 + 3 tokens
    }


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_native(tmp_path_factory.mktemp("target"), "llama", **SIZES)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with other weights, one layer with a window, and other heads: its own cache group."""
    return write_tiny_native(
        tmp_path_factory.mktemp("draft"), "mistral", seed=3, num_hidden_layers=1,
        num_key_value_heads=4, **SIZES,
    )  # fmt: skip


@pytest.fixture(scope="module")
def llm(target: Path, stranger: Path) -> Iterator[jengine.LLM]:
    with tiny_engine(target, **drafting(stranger)) as one:
        yield one
        assert is_idle(one)


@pytest.fixture(scope="module")
def expected(llm: jengine.LLM) -> list[jengine.RequestOutput]:
    with rebuilt(llm, speculative=None) as plain:
        return plain.generate(PROMPTS, params())


def drafted(llm: jengine.LLM) -> Any:
    return llm.engine.in_process.core.counts().drafts


@pytest.mark.parametrize("overlap", [False, *slow(True)])
def test_the_same_tokens_and_logprobs_as_without(
    llm: jengine.LLM, expected: list[jengine.RequestOutput], overlap: bool
) -> None:
    with rebuilt(llm, overlap=overlap) as speculating:
        same(speculating.generate(PROMPTS, params()), expected)
        assert drafted(speculating).drafted > 0
        same(speculating.generate(PROMPTS, params()), expected)  # from the prefix cache
        assert speculating.stats().prefix_hits > 0


def test_steps_in_which_no_draft_can_pay_leave_the_draft_model_out(
    llm: jengine.LLM, expected: list[jengine.RequestOutput]
) -> None:
    """What it has not read makes drafts worse, and changes no token."""
    drafts = llm.engine.schedule.speculative
    for cost in (5.0, 0.0):
        with rebuilt(llm, speculative=replace(drafts, adaptive=True, draft_cost=cost)) as adaptive:
            same(adaptive.generate(PROMPTS, params()), expected)


def test_requests_hold_blocks_for_drafts(llm: jengine.LLM) -> None:
    assert llm.engine.cache.lookahead == DRAFTS
    assert llm.engine.cache.measured_blocks == 0


def test_preempted_requests_go_on_with_drafts(llm: jengine.LLM) -> None:
    """Four requests of up to 78 tokens, with room for 208."""
    prompts = random_prompts(15, 15, 15, 15, seed=2)
    sampling = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    with rebuilt(llm, speculative=None) as plain:
        expected = answers(plain.generate(prompts, sampling))
    with rebuilt(llm, num_blocks=14) as small:
        assert answers(small.generate(prompts, sampling)) == expected
        assert small.stats().preemptions > 0


@pytest.mark.slow
def test_a_model_that_drafts_for_itself_is_right(target: Path) -> None:
    """Drawn tokens too: drafts are drawn with the noise of the token that they are to be."""
    kinds = [{"temperature": 0}, {"temperature": 1.0, "seed": 3}]
    sampling = [SamplingParams(max_tokens=24, ignore_eos=True, **kind) for kind in kinds]
    with tiny_engine(target, **drafting(target)) as llm:
        found = llm.generate([[5, 6, 7], [8, 9]], sampling)
        counts = drafted(llm)
        assert counts.accepted > 0.9 * counts.drafted
        with rebuilt(llm, speculative=None) as plain:
            assert answers(plain.generate([[5, 6, 7], [8, 9]], sampling)) == answers(found)


@pytest.mark.slow
def test_near_the_end_of_the_context(target: Path) -> None:
    """Drafts would stand beyond the longest context."""
    settings = {**drafting(target), "max_model_len": 64}
    sampling = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    with tiny_engine(target, **settings) as llm:
        found = llm.generate([[5] * 40, [6] * 60], sampling)
        with rebuilt(llm, speculative=None) as plain:
            assert answers(plain.generate([[5] * 40, [6] * 60], sampling)) == answers(found)


@pytest.mark.slow
@pytest.mark.parametrize("family", [*DISTINCT, "gpt_oss", "deepseek_v3", "cohere2"])
def test_families_draft_and_is_drafted_for(tmp_path: Path, family: str) -> None:
    model = write_tiny_native(tmp_path / "model", family)
    draft = write_tiny_native(tmp_path / "draft", family, seed=3)
    with tiny_engine(model, max_model_len=256, **drafting(draft)) as llm:
        with rebuilt(llm, speculative=None) as plain:
            expected = plain.generate(PROMPTS, params())
        for _ in range(2):
            same(llm.generate(PROMPTS, params()), expected)
        assert drafted(llm).drafted > 0


def with_config(folder: Path, **more: Any) -> Path:
    """The same folder, with more keys in config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **more}))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("key", ["pard_token", "ptd_token_id"])
def test_drafts_in_one_pass_read_masks_after_the_last_token(
    target: Path, tmp_path: Path, key: str
) -> None:
    """The drafts are the most likely tokens after the text with masks at its end."""
    mask, sampling = 7, SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    one_layer = {**SIZES, "num_hidden_layers": 1}
    draft = with_config(write_tiny_native(tmp_path, "mistral", seed=3, **one_layer), **{key: mask})
    with (
        tiny_engine(draft) as alone,
        tiny_engine(target, **drafting(draft, parallel_drafting=True)) as llm,
    ):
        for prompt in random_prompts(1, 150, seed=5):
            with rebuilt(llm, max_num_batched_tokens=64) as fresh:
                [output] = fresh.generate([prompt], sampling)
                found = np.asarray(fresh.engine.loaded.state.next_drafts)[0].tolist()
            known = prompt + output.outputs[0].token_ids
            texts = [known + [mask] * count for count in range(DRAFTS)]
            after = alone.generate(texts, sampling)
            assert found == [one.outputs[0].token_ids[0] for one in after]
        with rebuilt(llm, speculative=None) as plain:
            expected = plain.generate(PROMPTS, params())
        for _ in range(2):
            same(llm.generate(PROMPTS, params()), expected)
        assert drafted(llm).drafted > 0


def test_drafting_in_one_pass_needs_a_token_that_says_so(target: Path, tmp_path: Path) -> None:
    draft = write_tiny_native(tmp_path, "mistral", **SIZES)
    for more in ({}, {"pard_token": 128}):
        with pytest.raises(CheckpointError, match=r"pard_token or ptd_token_id = .* below 128"):
            tiny_engine(target, **drafting(with_config(draft, **more), parallel_drafting=True))


def test_models_that_cannot_draft_are_refused(target: Path, tmp_path: Path) -> None:
    other = write_tiny_native(tmp_path, "llama", vocab_size=97)
    with pytest.raises(ConfigError, match="a vocabulary of 97, and the model one of 128"):
        tiny_engine(target, **drafting(other))
    with pytest.raises(ConfigError, match="expected the folder"):
        tiny_engine(target, **drafting(target, model=None))
