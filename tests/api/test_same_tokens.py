"""The same request gives the same tokens, however it is chunked, cached, preempted or batched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jengine
from jengine import SamplingParams
from tests.api.engines import (
    MAX_MODEL_LEN,
    answers,
    logprob_rows,
    random_prompts,
    rebuilt,
    tiny_engine,
)
from tests.marks import slow

PROMPTS = random_prompts(1, 15, 16, 17, 33, 60, 100, 130, 200, 300)
LOGPROBS = 3


def mixed_params(**changes: Any) -> list[SamplingParams]:
    """Greedy and seeded requests in turn, long enough to cross a block."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 1.0, "seed": 5},
        {"temperature": 0.8, "seed": -7, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
        {"temperature": 0, "repetition_penalty": 1.3, "presence_penalty": 0.5},
        {"temperature": 1.2, "seed": 2**40, "frequency_penalty": 0.7, "logit_bias": {5: 2.0}},
    ]
    common = {"max_tokens": 18, "ignore_eos": True, **changes}
    return [SamplingParams(**kinds[i % len(kinds)], **common) for i in range(len(PROMPTS))]


def run(llm: jengine.LLM, params: Any = None, prompts: Any = None) -> list[list[list[int]]]:
    return answers(llm.generate(prompts or PROMPTS, params or mixed_params()))


@pytest.fixture(scope="module")
def truths() -> dict[int, list[list[list[int]]]]:
    return {}


@pytest.fixture
def truth(
    either_engine: jengine.LLM, truths: dict[int, list[list[list[int]]]]
) -> list[list[list[int]]]:
    """What each request answers all by itself, without a cache to find anything in."""
    if id(either_engine) not in truths:
        with rebuilt(either_engine, prefix_caching=False, overlap=False) as llm:
            truths[id(either_engine)] = [
                run(llm, [params], [prompt])[0]
                for prompt, params in zip(PROMPTS, mixed_params(), strict=True)
            ]
    return truths[id(either_engine)]


def test_together_as_alone(either_engine: jengine.LLM, truth: Any) -> None:
    with rebuilt(either_engine) as llm:
        assert run(llm) == truth


@pytest.mark.parametrize("budget", [32, 96, *slow(64, 256)])
def test_any_chunk_size(either_engine: jengine.LLM, truth: Any, budget: int) -> None:
    with rebuilt(either_engine, max_num_batched_tokens=budget) as llm:
        assert run(llm) == truth


def test_a_cap_on_long_chunks(either_engine: jengine.LLM, truth: Any) -> None:
    with rebuilt(either_engine, long_prefill_token_threshold=64) as llm:
        assert run(llm) == truth


def test_cold_and_warm_prefix_cache(either_engine: jengine.LLM, truth: Any) -> None:
    with rebuilt(either_engine) as llm:
        assert run(llm) == truth
        cold = llm.stats().prefix_hits
        outputs = llm.generate(PROMPTS, mixed_params())
        assert answers(outputs) == truth
        assert llm.stats().prefix_hits > cold
        assert outputs[-1].num_cached_tokens >= 256
        assert outputs[0].num_cached_tokens == 0


def test_no_prefix_cache_finds_nothing(either_engine: jengine.LLM, truth: Any) -> None:
    with rebuilt(either_engine, prefix_caching=False) as llm:
        assert run(llm) == truth
        outputs = llm.generate(PROMPTS, mixed_params())
        assert answers(outputs) == truth
        assert all(output.num_cached_tokens == 0 for output in outputs)


def test_several_answers_share_the_blocks_of_their_prompt(either_engine: jengine.LLM) -> None:
    either_engine.reset_prefix_cache()
    before = either_engine.stats().prefix_hits
    (prompt,) = random_prompts(120, seed=8)
    params = SamplingParams(n=4, temperature=1.0, seed=5, max_tokens=6)
    (output,) = either_engine.generate([prompt], params)
    assert len(output.outputs) == 4
    block = either_engine.engine.cache.block_size
    assert either_engine.stats().prefix_hits - before == 3 * (119 // block * block)


def test_shared_prefixes_in_one_batch(either_engine: jengine.LLM) -> None:
    common, *tails = random_prompts(100, 1, 7, 30, 64)
    prompts = [common + tail for tail in tails] + [common, common]
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
    with rebuilt(either_engine, prefix_caching=False) as llm:
        expected = run(llm, params, prompts)
    with rebuilt(either_engine) as llm:
        assert run(llm, params, prompts) == expected
        assert llm.stats().prefix_hits > 0


def test_equal_blocks_after_other_heads_are_no_hit(either_engine: jengine.LLM) -> None:
    common, *heads = random_prompts(48, 16, 16, 16)
    prompts = [head + common for head in heads]
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
    with rebuilt(either_engine, prefix_caching=False) as llm:
        expected = run(llm, params, prompts)
    with rebuilt(either_engine) as llm:
        assert [run(llm, params, [prompt])[0] for prompt in prompts] == expected
        assert llm.stats().prefix_hits == 0


@pytest.mark.parametrize("overlap", [True, False])
def test_preemption(either_engine: jengine.LLM, truth: Any, overlap: bool) -> None:
    # One request as long as the longest fits, and little more.
    with rebuilt(either_engine, num_blocks=24, overlap=overlap, max_num_batched_tokens=96) as llm:
        assert run(llm) == truth
        full = either_engine.engine.cache.groups[0].spec.window is None
        assert llm.stats().preemptions > 0 or not full


def test_requests_take_turns_in_the_samplers_pool(llm: jengine.LLM) -> None:
    kinds: list[dict[str, Any]] = [
        {"repetition_penalty": 1.3, "frequency_penalty": 0.4},
        {"logit_bias": {5: 4.0, 6: -4.0}, "min_tokens": 6},
        {},
        {"allowed_token_ids": [3, 4, 8, 9, 10], "presence_penalty": 0.7},
    ]
    params = [
        SamplingParams(temperature=0, max_tokens=12, **kinds[i % len(kinds)])
        for i in range(len(PROMPTS))
    ]
    with rebuilt(llm) as all_at_once:
        expected = run(all_at_once, params)
    for most in (1, 3):
        with rebuilt(llm, max_adjusted_seqs=most) as in_turns:
            assert run(in_turns, params) == expected


def test_preemption_in_a_window(window_engine: jengine.LLM) -> None:
    prompts = random_prompts(*[40] * 8, seed=3)
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    with rebuilt(window_engine) as llm:
        expected = run(llm, params, prompts)
    with rebuilt(window_engine, num_blocks=12, max_num_batched_tokens=64) as llm:
        assert run(llm, params, prompts) == expected
        assert llm.stats().preemptions > 0


def test_without_overlap(either_engine: jengine.LLM, truth: Any) -> None:
    with rebuilt(either_engine, overlap=False) as llm:
        assert run(llm) == truth


def test_any_arrival_order(either_engine: jengine.LLM, truth: Any) -> None:
    order = np.random.default_rng(1).permutation(len(PROMPTS)).tolist()
    params = mixed_params()
    with rebuilt(either_engine) as llm:
        outputs = run(llm, [params[i] for i in order], [PROMPTS[i] for i in order])
    assert outputs == [truth[i] for i in order]


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_any_number_of_rows(either_engine: jengine.LLM, truth: Any, rows: int) -> None:
    with rebuilt(either_engine, max_num_seqs=rows) as llm:
        assert run(llm) == truth


def test_priority_changes_the_order_only(either_engine: jengine.LLM, truth: Any) -> None:
    priorities = [len(PROMPTS) - i for i in range(len(PROMPTS))]
    with rebuilt(either_engine, policy="priority", num_blocks=24) as llm:
        outputs = llm.generate(PROMPTS, mixed_params(), priority=priorities)
    assert answers(outputs) == truth


def test_completions_have_following_seeds(either_engine: jengine.LLM) -> None:
    prompt = PROMPTS[5]
    params = SamplingParams(n=4, seed=11, max_tokens=12, ignore_eos=True)
    with rebuilt(either_engine, max_num_batched_tokens=64) as llm:
        together = run(llm, params, [prompt])[0]
        alone = [run(llm, params.clone(n=1, seed=11 + index), [prompt])[0][0] for index in range(4)]
    assert together == alone
    assert len({tuple(tokens) for tokens in together}) == 4


def test_log_probabilities_do_not_depend_on_the_schedule(either_engine: jengine.LLM) -> None:
    prompts = random_prompts(*range(45, 55), seed=4)
    params = mixed_params(logprobs=LOGPROBS, prompt_logprobs=LOGPROBS)
    with rebuilt(either_engine, overlap=False) as llm:
        plain = llm.generate(prompts, params)
    with rebuilt(either_engine, max_num_batched_tokens=64, num_blocks=14) as llm:
        chunked = llm.generate(prompts, params)
        assert llm.stats().preemptions > 0
    assert answers(plain) == answers(chunked)
    for one, other in zip(plain, chunked, strict=True):
        assert one.prompt_logprobs is not None and other.prompt_logprobs is not None
        assert one.prompt_logprobs[0] is None and other.prompt_logprobs[0] is None
        for ours, theirs in (
            (one.prompt_logprobs[1:], other.prompt_logprobs[1:]),
            (one.outputs[0].logprobs, other.outputs[0].logprobs),
        ):
            np.testing.assert_allclose(
                logprob_rows(ours, LOGPROBS), logprob_rows(theirs, LOGPROBS), atol=1e-5
            )


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 32])
def test_engines_made_for_few_and_many_rows(
    either_engine: jengine.LLM, truth: Any, rows: int
) -> None:
    folder = either_engine.engine.args.model
    with tiny_engine(
        folder, max_num_seqs=rows, compilation_config={"decode_rows": [max(rows, 2)]}
    ) as other:
        assert run(other) == truth


@pytest.mark.slow
def test_settings_given_to_the_engine_itself(either_engine: jengine.LLM, truth: Any) -> None:
    with tiny_engine(
        either_engine.engine.args.model,
        overlap=False,
        max_num_batched_tokens=96,
        kv_cache_memory_bytes=600_000,
        enable_prefix_caching=False,
        scheduling_policy="priority",
    ) as other:
        assert run(other) == truth
        assert run(other) == truth
        assert other.stats().prefix_hits == 0


@pytest.mark.slow
def test_without_chunked_prefill(either_engine: jengine.LLM, truth: Any) -> None:
    with tiny_engine(
        either_engine.engine.args.model,
        enable_chunked_prefill=False,
        max_num_batched_tokens=None,
        compilation_config={"prefill_tokens": [MAX_MODEL_LEN]},
    ) as other:
        assert run(other) == truth
