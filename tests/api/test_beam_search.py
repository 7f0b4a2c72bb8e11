"""Beam search: equal to a naive one over transformers' logits; what it shares and refuses."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jengine
from jengine import BeamSearchParams, StructuredOutputsParams
from jengine.beam_search import BeamSearchOutput, BeamSearchSequence
from jengine.errors import RequestError
from tests.api.engines import is_idle, random_prompts

EOS = 2
Logprobs = Callable[[list[int]], np.ndarray]


@pytest.fixture(scope="module")
def oracle(full_folder: Path) -> Logprobs:
    """log p of each next token after a sequence, by transformers in float32."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        full_folder, attn_implementation="eager", dtype="float32"
    ).eval()

    def after(tokens: list[int]) -> np.ndarray:
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0, -1]
        return torch.log_softmax(logits.double(), -1).numpy()

    return after


def naive(oracle: Logprobs, prompt: list[int], params: BeamSearchParams) -> list[Any]:
    """The definition, written down: (tokens, cumulative log-probability) of the best sequences."""

    def score(beam: tuple[list[int], float]) -> float:
        tokens, total = beam
        return total / (len(tokens) - (tokens[-1] == EOS)) ** params.length_penalty

    beams, ended = [(prompt, 0.0)], []
    for _ in range(params.max_tokens):
        longer = []
        for tokens, total in beams:
            values = oracle(tokens)
            for token in np.argsort(-values)[: 2 * params.beam_width].tolist():
                beam = ([*tokens, token], total + float(values[token]))
                (longer if token != EOS or params.ignore_eos else ended).append(beam)
        beams = sorted(longer, key=score, reverse=True)[: params.beam_width]
    return sorted([*ended, *beams], key=score, reverse=True)[: params.beam_width]


@pytest.mark.parametrize(
    ("width", "options"),
    [(1, {}), (3, {}), (4, {"ignore_eos": True}), (3, {"length_penalty": -3.0}),
     (2, {"length_penalty": 0.0, "temperature": 1.0})],
)  # fmt: skip
def test_equal_to_a_naive_search(
    text_llm: jengine.LLM, oracle: Logprobs, width: int, options: dict[str, Any]
) -> None:
    params = BeamSearchParams(width, 6, **options)
    prompts = random_prompts(5, 33, seed=width)
    for prompt, output in zip(prompts, text_llm.beam_search(prompts, params), strict=True):
        expected = naive(oracle, prompt, params)
        assert [beam.tokens for beam in output.sequences] == [tokens for tokens, _ in expected]
        found = [beam.cum_logprob for beam in output.sequences]
        np.testing.assert_allclose(found, [total for _, total in expected], atol=1e-4)


def test_sequences_end_with_eos_and_say_what_led_to_them(
    text_llm: jengine.LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a very short length penalty ended beams win, as they have lost least."""
    params = BeamSearchParams(8, 6, length_penalty=-3.0)
    (output,) = text_llm.beam_search("some text", params)
    assert isinstance(output, BeamSearchOutput)
    ended = [beam for beam in output.sequences if beam.tokens[-1] == EOS]
    assert ended and len(output.sequences) == 8
    prompt = text_llm.get_tokenizer()("some text").input_ids
    for beam in output.sequences:
        assert isinstance(beam, BeamSearchSequence)
        new = beam.tokens[len(prompt) :]
        assert beam.tokens[: len(prompt)] == prompt and len(beam.logprobs) == len(new)
        total = sum(table[token].logprob for token, table in zip(new, beam.logprobs, strict=True))
        assert total == pytest.approx(beam.cum_logprob, abs=1e-5)
        assert len(beam.logprobs[0]) == 16, "two candidates per beam"
        assert beam.text is not None and beam.text.startswith("some text")
        assert "</s>" not in beam.text and beam.finish_reason is None


def test_beams_share_the_blocks_of_their_prompt(text_llm: jengine.LLM) -> None:
    text_llm.reset_prefix_cache()
    before = text_llm.stats()
    (prompt,) = random_prompts(120, seed=9)
    text_llm.beam_search([prompt], BeamSearchParams(4, 8))
    after = text_llm.stats()
    ran = after.prefix_queries - before.prefix_queries - (after.prefix_hits - before.prefix_hits)
    assert ran == 120 + 7 * 4, "each computes its last token alone"


def test_a_limit_on_concurrency_changes_nothing(text_llm: jengine.LLM) -> None:
    prompts, params = random_prompts(4, 9, 14, seed=3), BeamSearchParams(2, 4)
    expected = text_llm.beam_search(prompts, params)
    found = text_llm.beam_search(prompts, params, concurrency_limit=2, use_tqdm=True)
    assert [[beam.tokens for beam in output.sequences] for output in found] == [
        [beam.tokens for beam in output.sequences] for output in expected
    ]


def test_beams_follow_a_grammar(text_llm: jengine.LLM) -> None:
    structured = StructuredOutputsParams(regex="[a-c]{2}(dd|e)")
    params = BeamSearchParams(3, 8, structured_outputs=structured)
    (output,) = text_llm.beam_search("x", params)
    assert output.sequences
    for beam in output.sequences:
        assert beam.text is not None
        assert re.fullmatch("x[a-c]{2}(dd|e)", beam.text), beam.text
    assert len({beam.text for beam in output.sequences}) == len(output.sequences)


@pytest.mark.parametrize(
    ("prompt", "params", "complaint"),
    [
        ("x", BeamSearchParams(2, 800), "exceed max_model_len=768"),
        ("x", jengine.SamplingParams(), "expected BeamSearchParams"),
        ("x", BeamSearchParams(49, 2), "compares 98 log-probabilities"),
        ([500], BeamSearchParams(2, 2), "token ids of this model"),
    ],
)
def test_what_is_refused(text_llm: jengine.LLM, prompt: Any, params: Any, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        text_llm.beam_search([prompt], params)


@pytest.mark.parametrize(
    "options",
    [{"beam_width": 0}, {"max_tokens": 0}, {"temperature": -1}, {"length_penalty": float("nan")},
     {"ignore_eos": 1}, {"structured_outputs": {}}],
)  # fmt: skip
def test_settings_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=next(iter(options))):
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 2, **options})
    with pytest.raises(TypeError, match="Did you mean 'beam_width'"):
        BeamSearchParams(beam_widths=2, max_tokens=2)


def test_async_answers_are_completions_without_prompt_and_eos(text_engine: jengine.LLM) -> None:
    """The same sequences, as servers show them."""
    params = BeamSearchParams(6, 5, length_penalty=-3.0)
    (expected,) = text_engine.beam_search("some text", params)

    async def searched() -> jengine.RequestOutput:
        engine = jengine.AsyncLLM.over(text_engine.engine)
        stream = engine.beam_search("some text", params)
        (output,) = [one async for one in stream]
        await asyncio.to_thread(engine._requests._steps.submit(int).result)
        return output

    output = asyncio.run(searched())
    begin = len(output.prompt_token_ids)
    for one, beam in zip(output.outputs, expected.sequences, strict=True):
        ended = beam.tokens[-1] == EOS
        assert one.token_ids == beam.tokens[begin : len(beam.tokens) - ended]
        assert one.finish_reason == ("stop" if ended else "length")
        assert one.stop_reason == (EOS if ended else None)
        assert "some text" + one.text == beam.text
        assert one.cumulative_logprob == beam.cum_logprob
        assert one.logprobs is not None and len(one.logprobs) == len(one.token_ids)
    assert output.finished and is_idle(text_engine)
