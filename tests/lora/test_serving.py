"""Requests with adapters: their answers are those of the model with the adapter merged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jengine import SamplingParams
from jengine.connectors.kv_events import BlockStored, Event
from jengine.kvcache.event_log import EventLog
from tests.api.engines import is_idle, rebuilt, tiny_engine
from tests.lora.engines import GREEDY, PLAIN, PROMPTS, TARGETS, Expected, Setup, check


@pytest.mark.parametrize("name", [None, *TARGETS])
def test_an_adapter_answers_as_the_merged_model(made: Setup, expected: Expected, name: Any) -> None:
    lora = None if name is None else made.adapters[name]
    outputs = made.llm.generate(PROMPTS, GREEDY, use_tqdm=False, lora_request=lora)
    check(outputs, [name] * len(PROMPTS), expected)
    assert outputs[0].lora_request is lora
    assert outputs[0].outputs[0].lora_request is lora


def test_different_adapters_and_none_in_one_batch(made: Setup, expected: Expected) -> None:
    names = ["all", None, "queries", "all"]
    outputs = made.answer(names)
    check(outputs, names, expected)


def test_more_adapters_than_slots_take_turns(made: Setup, expected: Expected) -> None:
    """Three adapters through two slots, twice: the gate keeps the third one waiting."""
    names = ["all", "queries", "mlp", None] * 2
    prompts = PROMPTS * 2
    outputs = made.answer(names, prompts)
    check(outputs, names, expected)
    assert is_idle(made.llm)


def test_chunks_preemption_and_small_caches_change_nothing(made: Setup, expected: Expected) -> None:
    names = ["all", None, "queries", "all"]
    with rebuilt(
        made.llm, num_blocks=7, max_num_batched_tokens=48, long_prefill_token_threshold=16
    ):
        outputs = made.answer(names)
        assert made.llm.stats().preemptions
    check(outputs, names, expected)


def test_prefixes_are_not_shared_across_adapters(made: Setup, expected: Expected) -> None:
    made.llm.reset_prefix_cache()
    prompt = PROMPTS[1]
    names = [None, "all", "queries"]
    for name in (*names, *names):
        lora = None if name is None else made.adapters[name]
        (output,) = made.llm.generate([prompt], GREEDY, use_tqdm=False, lora_request=lora)
        wanted = expected[name][1]
        assert output.outputs[0].token_ids == wanted.outputs[0].token_ids
        names.append(output.num_cached_tokens)
    assert names[3:6] == [0, 0, 0]
    assert all(cached >= 32 for cached in names[6:])


def test_prompt_logprobs_are_those_of_the_adapter(made: Setup) -> None:
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    loras = [made.adapters["all"], None]
    ours = made.llm.generate([PROMPTS[1]] * 2, params, use_tqdm=False, lora_request=loras)
    for output, folder in zip(ours, (made.models.merged["all"], made.models.base), strict=True):
        with tiny_engine(folder, **PLAIN) as llm:
            scores = llm.generate([PROMPTS[1]], params, use_tqdm=False)[0].prompt_logprobs
        for found, truth in zip(output.prompt_logprobs[1:], scores[1:], strict=True):
            for token, entry in truth.items():
                np.testing.assert_allclose(found[token].logprob, entry.logprob, atol=2e-4)


def test_events_of_blocks_name_the_adapter_as_its_user_does(made: Setup) -> None:
    batches: list[list[Event]] = []
    cache = made.llm.engine.in_process.core.scheduler.cache
    made.llm.reset_prefix_cache()
    cache.listeners.tell(EventLog(cache.block_size, batches.append, cache.config.groups), list)
    try:
        for name in ("all", None):
            lora = None if name is None else made.adapters[name]
            made.llm.generate(PROMPTS[1:2], GREEDY, use_tqdm=False, lora_request=lora)
    finally:
        cache.listeners.close()
    stored = [event for batch in batches for event in batch if isinstance(event, BlockStored)]
    lora = made.adapters["all"]
    told = {(event.lora_name, event.lora_id) for event in stored}
    assert told == {(lora.lora_name, lora.lora_int_id), (None, None)}
    for event in stored:
        assert event.extra_keys is not None
        assert set(event.extra_keys) == {(event.lora_name,) if event.lora_name else None}
