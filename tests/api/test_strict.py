"""After warm-up nothing compiles: shown by the ledger and by JAX's own events."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax.monitoring
import pytest

import jengine
from jengine import RequestOutputKind, SamplingParams
from jengine.errors import UnexpectedCompile
from jengine.runner.variants.parts import Part
from tests.api.engines import VOCAB, is_idle, random_prompts
from tests.models.tiny_models import write_tiny_native

COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
LADDERS = {"decode_rows": [4], "prefill_tokens": [64]}
SETTINGS: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "max_model_len": 96,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "max_logprobs": 5,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_native(
        tmp_path_factory.mktemp("strict"), "llama", num_hidden_layers=1, hidden_size=16
    )


@contextmanager
def counted_compiles() -> Iterator[list[str]]:
    """Names of compile events while this is open; loading from the persistent cache counts."""
    seen: list[str] = []

    def listen(event: str, _seconds: float, **_: Any) -> None:
        if event == COMPILE_EVENT:
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def random_request(rng: random.Random) -> tuple[list[int], SamplingParams]:
    """A short prompt and parameters in which any feature may be in use."""
    prompt = [rng.randrange(3, VOCAB) for _ in range(rng.choice([1, 2, 5, 15, 16, 17, 33, 60]))]
    options: dict[str, Any] = {"max_tokens": rng.randint(1, 12)}
    if rng.random() < 0.4:
        options["temperature"] = 0
    else:
        options |= {"seed": rng.randrange(2**40), "top_k": rng.choice([0, 7]), "top_p": 0.9}
        options["n"] = rng.choice([1, 1, 1, 3])
    extras: list[dict[str, Any]] = [
        {"logprobs": rng.choice([0, 3, 5])},
        {"prompt_logprobs": rng.choice([0, 2])},
        {"repetition_penalty": 1.2, "presence_penalty": 0.3},
        {"logit_bias": {rng.randrange(VOCAB): 3.0}},
        {"min_tokens": 1, "stop_token_ids": [rng.randrange(3, VOCAB) for _ in range(9)]},
        {"allowed_token_ids": [5, 6, 7, 8]},
        {"ignore_eos": True},
    ]
    for extra in extras:
        if rng.random() < 0.2:
            options |= extra
    return prompt, SamplingParams(**options)


def serve(llm: jengine.LLM, count: int, rng: random.Random) -> int:
    """Answer mixed requests as they come, aborting some; how many finished on their own."""
    finished = 0
    while count > 0:
        batch = [random_request(rng) for _ in range(min(count, 20))]
        count -= len(batch)
        prompts, params = zip(*batch, strict=True)
        stream = llm.stream(list(prompts), list(params))
        # Some callers leave after a few outputs, which aborts the rest of their batch.
        patience = rng.choice([10_000, 10_000, 10_000, 30])
        for shown, output in enumerate(stream):
            finished += output.finished
            if shown == patience:
                stream.close()
    return finished


def test_nothing_compiles_after_warm_up(folder: Path) -> None:
    compilation = {**LADDERS, "variants": ["greedy", "scored"]}
    llm = jengine.LLM(folder, strict=True, compilation_config=compilation, **SETTINGS)
    programs = len(llm.ledger.entries)
    assert programs == 2 + 2 * 2 + 1, "forwards, two ways to sample for each, and scores"
    with counted_compiles() as seen:
        finished = serve(llm, 200, random.Random(0))
    assert finished > 120
    assert seen == []
    assert is_idle(llm)
    ledger = llm.ledger
    assert ledger.compiles_after_warm_up == 0
    assert len(ledger.entries) == programs
    steps = llm.engine.in_process.core.scheduler._flights.next_step
    forwards = [one for one in ledger.entries.values() if one.features.part is Part.FORWARD]
    assert sum(entry.hits for entry in forwards) == steps
    assert all(entry.hits > 0 for entry in ledger.entries.values())
    for entry in forwards:
        assert 0 < entry.useful_tokens <= entry.hits * entry.bucket.num_tokens
        assert 0 <= entry.padded_share < 1
    text = str(ledger)
    assert f"{programs} programs" in text and "compiled late" not in text
    assert len(ledger.as_dicts()) == programs


@pytest.fixture(scope="module")
def greedy_only(folder: Path) -> jengine.LLM:
    compilation = {**LADDERS, "variants": ["greedy"]}
    return jengine.LLM(folder, strict=True, compilation_config=compilation, **SETTINGS)


def greedy(llm: jengine.LLM) -> list[int]:
    params = SamplingParams(temperature=0, max_tokens=5)
    return llm.generate(random_prompts(20), params)[0].outputs[0].token_ids


def test_a_missing_variant_is_an_error_that_the_engine_survives(greedy_only: jengine.LLM) -> None:
    before = greedy(greedy_only)
    with pytest.raises(UnexpectedCompile, match=r"random.*not compiled in warm-up.*'variants'"):
        greedy_only.generate(random_prompts(9), SamplingParams(seed=1))
    assert is_idle(greedy_only)
    assert greedy(greedy_only) == before
    assert greedy_only.ledger.compiles_after_warm_up == 0


def test_a_missing_variant_ends_what_ran_beside_it(greedy_only: jengine.LLM) -> None:
    before = greedy(greedy_only)
    stream = greedy_only.stream(random_prompts(9), SamplingParams(temperature=0, max_tokens=50))
    next(stream)
    with pytest.raises(UnexpectedCompile):
        greedy_only.generate(random_prompts(9), SamplingParams(seed=1))
    remaining = list(stream)
    assert remaining[-1].finished and remaining[-1].outputs[0].finish_reason == "abort"
    assert is_idle(greedy_only)
    assert greedy(greedy_only) == before


def test_without_strict_a_request_waits_for_its_programs_alone(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # First of all: other tests may have left this logger more talkative.
    caplog.set_level(logging.WARNING, logger="jengine")
    compilation = {**LADDERS, "variants": ["greedy"]}
    llm = jengine.LLM(folder, compilation_config=compilation, **SETTINGS)
    params = SamplingParams(seed=1, max_tokens=1, output_kind=RequestOutputKind.FINAL_ONLY)
    programs = len(llm.ledger.entries)
    for _ in range(2):
        assert llm.generate(random_prompts(9), params)[0].finished
    # The request waited, and no step: for what samples at each size, in the most capable variant.
    assert llm.ledger.compiles_after_warm_up == llm.stats().compiles_after_warm_up == 0
    late = [one for one in llm.ledger.entries.values() if one.beside_steps]
    assert len(late) == len(llm.ledger.entries) - programs == 2
    assert {one.features.part for one in late} == {Part.SAMPLE}
    assert llm.ledger.totals.late == {"sample": 2} and not llm.ledger.totals.awaited_seconds
    assert not caplog.records
    assert llm.stats().on_first_use[0] == "random"
    assert "compiled on first use: random, random+adjust" in str(llm.stats())
    # The variant of warm-up also runs what a cheaper one would.
    compilation = {**LADDERS, "variants": ["sampled"]}
    sampled = jengine.LLM(folder, compilation_config=compilation, **SETTINGS)
    assert sampled.stats().on_first_use[0] == "random+adjust"
    assert str(llm.ledger).count("compiled beside steps") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variants", "programs"),
    [
        (["scored"], 5),  # two forwards, what samples behind them, and what scores
        (["full", "scored"], 5),  # which sample by the same programs
        (["full"], 4),
    ],
)
def test_every_choice_of_variants_warms_up_all_it_needs(
    folder: Path, variants: list[str], programs: int
) -> None:
    compilation = {**LADDERS, "variants": variants}
    llm = jengine.LLM(folder, strict=True, compilation_config=compilation, **SETTINGS)
    assert len(llm.ledger.entries) == programs
    assert llm.generate(random_prompts(9), SamplingParams(seed=1, logprobs=2))[0].finished
