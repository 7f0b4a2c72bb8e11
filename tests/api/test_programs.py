"""No request waits for a compiler: what requests ask for compiles no model, and what is missing is
compiled beside the steps of others."""

from __future__ import annotations

import dataclasses
import inspect
import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

import jengine
from jengine import PoolingParams, SamplingParams
from jengine.runner.programs import background, late
from jengine.runner.programs.warm_up import compile_in_turn
from jengine.runner.variants.parts import Part
from jengine.runner.variants.program_list import Key
from jengine.sampling_params import RequestOutputKind
from tests.api.engines import is_idle, random_prompts
from tests.models.tiny_models import write_tiny_native

SETTINGS: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "max_model_len": 96,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
}
LADDERS = {"decode_rows": [2, 4], "prefill_tokens": [32, 64]}


def no_change(logits: jax.Array) -> jax.Array:
    return logits


# A value of each parameter that changes what steps compute, beside those that it needs.
CASES: dict[str, dict[str, Any]] = {
    "n": {"n": 2, "temperature": 1.0},
    "temperature": {"temperature": 0.7},
    "top_p": {"top_p": 0.5, "temperature": 1.0},
    "top_k": {"top_k": 3, "temperature": 1.0},
    "min_p": {"min_p": 0.1, "temperature": 1.0},
    "seed": {"seed": 4, "temperature": 1.0},
    "presence_penalty": {"presence_penalty": 0.5},
    "frequency_penalty": {"frequency_penalty": 0.5},
    "repetition_penalty": {"repetition_penalty": 1.2},
    "stop_token_ids": {"stop_token_ids": [5], "min_tokens": 2},
    "min_tokens": {"min_tokens": 3, "stop_token_ids": [7]},
    "ignore_eos": {"ignore_eos": True},
    "max_tokens": {"max_tokens": 3},
    "logprobs": {"logprobs": 3},
    "prompt_logprobs": {"prompt_logprobs": 2},
    "logprob_token_ids": {"logprob_token_ids": [3, 4]},
    "flat_logprobs": {"flat_logprobs": True, "logprobs": 1},
    "logit_bias": {"logit_bias": {5: 3.0}},
    "allowed_token_ids": {"allowed_token_ids": [5, 6, 7]},
    "output_kind": {"output_kind": RequestOutputKind.FINAL_ONLY},
    "skip_reading_prefix_cache": {"skip_reading_prefix_cache": True},
    "detokenize": {"detokenize": False},
    "stream_interval": {"stream_interval": 2},
}
# Parameters that never reach a step, or need a tokenizer: those with words become ids, biases and
# masks, which are cases above.
OF_THE_FRONT = {
    "stop", "include_stop_str_in_output", "bad_words", "skip_special_tokens",
    "truncate_prompt_tokens", "spaces_between_special_tokens", "structured_outputs",
    "thinking_token_budget", "repetition_detection",
}  # fmt: skip
# What an engine must be made for: processors of the host, mixtures of experts; and functions of the
# caller's, which have programs of their own.
OWN_PROGRAMS = {"extra_args", "routed_experts_prompt_start", "logits_processors"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("programs")
    return write_tiny_native(made, "llama", num_hidden_layers=1, hidden_size=16)


@pytest.fixture(scope="module")
def complete(folder: Path) -> Iterator[jengine.LLM]:
    with jengine.LLM(folder, compilation_config={**LADDERS, "wait_for": "all"}, **SETTINGS) as llm:
        yield llm


def test_every_parameter_has_a_case() -> None:
    names = {name for name in inspect.signature(SamplingParams).parameters if name[0] != "_"}
    assert names - {*CASES} - OF_THE_FRONT - OWN_PROGRAMS == set()
    assert {*CASES} <= names


def test_no_parameter_compiles_a_program(complete: jengine.LLM) -> None:
    before = set(complete.ledger.entries)
    for case in CASES.values():
        params = SamplingParams(**{"temperature": 0, "max_tokens": 3, **case})
        for lengths in ([9], [40, 3]):
            assert all(one.finished for one in complete.generate(random_prompts(*lengths), params))
        assert set(complete.ledger.entries) == before, case
    assert complete.ledger.totals.late == {} and complete.ledger.totals.awaited_seconds == 0


def test_a_soak_with_every_parameter_waits_for_no_compiler(complete: jengine.LLM) -> None:
    """Requests of all kinds in the same batches, more than run at once."""
    rng, before = random.Random(3), set(complete.ledger.entries)
    params = [SamplingParams(**{"temperature": 0, "max_tokens": 3, **case})
              for case in CASES.values() for _ in range(3)]  # fmt: skip
    rng.shuffle(params)
    prompts = random_prompts(*(rng.randint(1, 70) for _ in params))
    assert all(one.finished for one in complete.generate(prompts, params))
    assert set(complete.ledger.entries) == before
    totals = complete.ledger.totals
    assert (totals.awaited_seconds, totals.unexpected, totals.late) == (0, 0, {})


def test_functions_compile_no_model(complete: jengine.LLM) -> None:
    before = set(complete.ledger.entries)
    params = SamplingParams(temperature=0, max_tokens=3, logits_processors=[no_change])
    plain = SamplingParams(temperature=0, max_tokens=3)
    found, expected = (complete.generate(random_prompts(9), one)[0] for one in (params, plain))
    assert found.outputs[0].token_ids == expected.outputs[0].token_ids
    added = set(complete.ledger.entries) - before
    assert added and {features.part for _, features in added} == {Part.SAMPLE}
    assert complete.ledger.totals.awaited_seconds == 0


# The same of PoolingParams, with the kind of model that takes it.
POOLING_CASES: dict[str, dict[str, Any]] = {
    "use_activation": {"use_activation": False},
    "dimensions": {"dimensions": 8},
    "skip_reading_prefix_cache": {"skip_reading_prefix_cache": True},
    "task": {"task": "token_embed"},
}
# Rewards of steps choose among rows on the host; the other has one value.
POOLED_ON_HOST = {"step_tag_id", "returned_token_ids", "output_kind"}


def test_every_pooling_parameter_has_a_case() -> None:
    names = {one.name for one in dataclasses.fields(PoolingParams)}
    assert names == {*POOLING_CASES} | POOLED_ON_HOST


@pytest.mark.parametrize("task", ["embed", "token_embed"])
def test_no_pooling_parameter_compiles_a_program(folder: Path, task: Any) -> None:
    """A pooling model has a forward for each size, and behind it what pools, by slots and by
    tokens."""
    settings = {
        **SETTINGS, "runner": "pooling", "pooler_config": {"task": task},
        "hf_overrides": {"is_matryoshka": True}, "strict": True,
        "compilation_config": {"prefill_tokens": [32, 64]},
    }  # fmt: skip
    with jengine.LLM(folder, **settings) as llm:
        before = set(llm.ledger.entries)
        parts = Counter(features.part for _, features in before)
        each = {Part.POOL_TOKENS: 1} if task == "token_embed" else {}
        assert parts == {Part.FORWARD: 2, Part.POOL: 1, **each}
        for case in POOLING_CASES.values():
            params = PoolingParams(**{**case, "task": task})
            for lengths in ([9], [40, 3]):
                llm.encode(random_prompts(*lengths), params, pooling_task=task)
            assert set(llm.ledger.entries) == before, case
        assert llm.ledger.totals.awaited_seconds == 0


class Hold:
    """Holds the thread that compiles late programs."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.began = threading.Event()
        self.error: Exception | None = None

    def compile(self, owners: Any, key: Key) -> Any:
        self.began.set()
        assert self.open.wait(60)
        if self.error is not None:
            raise self.error
        return compile_in_turn(owners, key)


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hold]:
    hold = Hold()
    monkeypatch.setattr(late, "compile_in_turn", hold.compile)
    yield hold
    hold.open.set()


@pytest.fixture
def greedy(folder: Path) -> Iterator[jengine.LLM]:
    """An engine that has compiled greedy sampling alone."""
    with jengine.LLM(
        folder, compilation_config={**LADDERS, "variants": ["greedy"]}, **SETTINGS
    ) as llm:
        llm.wait_until_warm()
        yield llm


GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


def test_others_go_on_while_a_program_is_compiled(greedy: jengine.LLM, hold: Hold) -> None:
    """A stream runs from its first to its last token while another request's program is held."""
    scored = SamplingParams(temperature=0, max_tokens=2, logprobs=1, prompt_logprobs=1)
    expected = greedy.generate(random_prompts(9), GREEDY)[0].outputs[0].token_ids
    answers: list[Any] = []
    waiting = threading.Thread(
        target=lambda: answers.append(greedy.generate(random_prompts(9), scored)[0])
    )
    waiting.start()
    assert hold.began.wait(60)
    stream = greedy.stream(random_prompts(9), GREEDY)
    assert [*stream][-1].outputs[0].token_ids == expected
    assert waiting.is_alive() and not answers
    hold.open.set()
    waiting.join(60)
    [answer] = answers
    assert answer.outputs[0].token_ids == expected[:2] and len(answer.prompt_logprobs) == 9
    assert greedy.ledger.totals.awaited_seconds == 0
    assert greedy.ledger.totals.late == {"sample": 3, "score": 1}
    assert is_idle(greedy)


@pytest.mark.slow
def test_functions_of_requests_that_meet_wait_for_their_common_program(
    greedy: jengine.LLM,
) -> None:
    """Also where the last step ran a chunk of a prompt, which samples nothing yet."""
    others = [lambda logits, by=by: logits * by for by in (2.0, 3.0)]
    params = [GREEDY.clone(max_tokens=4, logits_processors=[one]) for one in others]
    prompts = random_prompts(90, 9)
    expected = [greedy.generate([one], each) for one, each in zip(prompts, params, strict=True)]
    for at_once in (False, True):
        assert greedy.reset_prefix_cache()
        for prompt, each in zip(prompts, params, strict=True):
            greedy.enqueue([prompt], each, use_tqdm=False)
            while not at_once and greedy.stats().running == 0:
                greedy._answering.batches._try_step(lambda: False)
        found = greedy.wait_for_completion(use_tqdm=False)
        assert [one.outputs[0].token_ids for one in found] == [
            one.outputs[0].token_ids for [one] in expected
        ]
        assert greedy.ledger.totals.awaited_seconds == 0
    assert is_idle(greedy)


def test_a_program_that_does_not_compile_is_its_requests_error(
    greedy: jengine.LLM, hold: Hold
) -> None:
    hold.error = RuntimeError("the compiler is ill")
    hold.open.set()
    expected = greedy.generate(random_prompts(9), GREEDY)[0].outputs[0].token_ids
    stream = greedy.stream(random_prompts(9), GREEDY)
    next(stream)
    failed = greedy.generate(random_prompts(9), SamplingParams(logprobs=2, max_tokens=2))[0]
    assert failed.outputs[0].finish_reason == "error"
    assert "could not be compiled: RuntimeError: the compiler is ill" in str(failed.error)
    assert [*stream][-1].outputs[0].token_ids == expected
    assert is_idle(greedy)


def test_a_request_that_leaves_while_its_program_is_compiled_is_gone(
    greedy: jengine.LLM, hold: Hold
) -> None:
    scored = SamplingParams(temperature=0, max_tokens=2, logprobs=1)
    leaving = greedy.stream(random_prompts(9), scored)
    staying = greedy.stream(random_prompts(9), GREEDY)
    next(staying)
    assert hold.began.wait(60)
    del leaving
    expected = [*staying][-1].outputs[0].token_ids
    assert is_idle(greedy) and not hold.open.is_set()
    hold.open.set()
    assert greedy.generate(random_prompts(9), scored)[0].outputs[0].token_ids == expected[:2]
    assert is_idle(greedy)


def test_a_function_whose_program_fails_is_its_requests_error(greedy: jengine.LLM) -> None:
    traced: list[jax.Array] = []

    def broken(logits: jax.Array) -> jax.Array:
        traced.append(logits)
        if len(traced) > 1:  # the first time, its shapes are checked as the request comes in
            raise ValueError("no such bias")
        return logits

    expected = greedy.generate(random_prompts(9), GREEDY)[0].outputs[0].token_ids
    stream = greedy.stream(random_prompts(9), GREEDY)
    next(stream)
    params = SamplingParams(temperature=0, max_tokens=2, logits_processors=[broken])
    failed = greedy.generate(random_prompts(9), params)[0]
    assert failed.outputs[0].finish_reason == "error"
    assert "ValueError: no such bias" in str(failed.error)
    assert [*stream][-1].outputs[0].token_ids == expected
    assert is_idle(greedy)


def test_what_warm_up_failed_to_compile_is_tried_for_who_asks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any) -> Any:
        raise RuntimeError("the compiler is ill")

    monkeypatch.setattr(background, "compile_in_turn", fail)
    early = {**LADDERS, "wait_for": "largest"}
    with jengine.LLM(folder, compilation_config=early, **SETTINGS) as llm:
        with pytest.raises(RuntimeError, match="the compiler is ill"):
            llm.wait_until_warm()
        params = SamplingParams(temperature=0, max_tokens=2, logprobs=1)
        assert llm.generate(random_prompts(9), params)[0].outputs[0].logprobs is not None
