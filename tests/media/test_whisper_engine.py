"""Whisper end to end, equal to transformers in float32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jengine
from jengine import SamplingParams
from jengine.errors import RequestError
from tests.api.engines import answers, is_idle, rebuilt, tiny_engine
from tests.media.tiny_whisper import START, greedy, sound, write_whisper

pytestmark = pytest.mark.slow
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
LOW, HIGH, SHORT = sound(1.0, 220), sound(0.8, 1800), sound(0.1, 700)
PROMPTS: list[tuple[list[int], Any]] = [
    ([START, 5, 6, 7], LOW),
    ([START], HIGH),
    ([START, *range(3, 40)], SHORT),
    ([START, 8], LOW),
]


def asked(ids: list[int], samples: Any) -> dict[str, Any]:
    return {"prompt_token_ids": ids, "multi_modal_data": {"audio": (samples, 16000)}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[jengine.LLM]:
    # Room for the audio of two requests: the others wait. A limit may name what a model lacks.
    engine = tiny_engine(
        folder, compilation_config={"encoder_tokens": 100}, max_model_len=64,
        limit_mm_per_prompt={"audio": 1, "image": 2},
    )  # fmt: skip
    yield engine
    assert is_idle(engine)
    engine.shutdown()


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[list[int]]]:
    """What transformers answers."""
    return [[greedy(folder, samples, ids, 10)] for ids, samples in PROMPTS]


def test_mixed_batches_answer_as_transformers_does(llm: jengine.LLM, expected: Any) -> None:
    assert len({str(each) for each in expected}) == len(PROMPTS), "audio and prompts matter"
    outputs = llm.generate([asked(*one) for one in PROMPTS], GREEDY)
    assert answers(outputs) == expected


def test_explicit_prompts_of_encoder_and_decoder(llm: jengine.LLM, expected: Any) -> None:
    ids, samples = PROMPTS[0]
    audio = {"prompt": "", "multi_modal_data": {"audio": (samples, 16000)}}
    # The token that starts a decoder is put before a prompt that lacks it.
    given = {"encoder_prompt": audio, "decoder_prompt": {"prompt_token_ids": ids[1:]}}
    assert answers(llm.generate([given], GREEDY)) == expected[:1]


def test_equal_audio_is_encoded_once_and_shares_prefixes(llm: jengine.LLM, expected: Any) -> None:
    ids, samples = PROMPTS[2]
    outputs = [llm.generate([asked(ids, samples)], GREEDY)[0] for _ in range(2)]
    assert answers(outputs) == [expected[2]] * 2
    assert outputs[1].num_cached_tokens
    (other,) = llm.generate([asked(ids, LOW)], GREEDY)
    assert not other.num_cached_tokens, "another audio shares no blocks"


def test_preempted_requests_answer_as_others_do(llm: jengine.LLM) -> None:
    long = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    prompts = [asked(*PROMPTS[0]), asked(*PROMPTS[1]), asked(*PROMPTS[3])]
    expected = [answers(llm.generate([one], long))[0] for one in prompts]
    with rebuilt(llm, num_blocks=5, prefix_caching=False) as small:
        outputs = small.generate(prompts, long)
    assert answers(outputs) == expected
    assert sum(one.metrics.num_preemptions for one in outputs if one.metrics)


def test_prompts_without_audio_are_refused(llm: jengine.LLM) -> None:
    with pytest.raises(RequestError, match="no audio"):
        llm.generate([[START, 5]], GREEDY)
    with pytest.raises(RequestError, match="reads 1 s at a time"):
        llm.generate([asked([START], sound(1.2, 300))], GREEDY)
