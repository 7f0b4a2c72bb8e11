"""Deterministic mode: log-probabilities are bitwise the same however a token was computed."""

from __future__ import annotations

import numpy as np
import pytest

from jengine import LLM, SamplingParams
from jengine.errors import ConfigError
from jengine.outputs import RequestOutput
from tests.models.tiny_models import write_tiny_native

LENGTHS = (1, 5, 40, 130, 17)
GENERATE = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=0)
SCORE = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, prompt_logprobs=0)


def prompts() -> list[list[int]]:
    """Random prompts of mixed length."""
    generator = np.random.default_rng(0)
    return [generator.integers(3, 90, length).tolist() for length in LENGTHS]


@pytest.fixture(
    scope="module",
    params=[
        "qwen3",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("mistral", "mixtral")),
    ],
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp(request.param)
    write_tiny_native(path, request.param)
    return str(path)


def engine(folder: str, **settings: object) -> LLM:
    return LLM(
        folder, skip_tokenizer_init=True, enforce_eager=True, max_model_len=192, max_num_seqs=8,
        **settings,
    )  # fmt: skip


def numbers(output: RequestOutput) -> np.ndarray:
    found = output.outputs[0].logprobs_array
    assert found is not None
    return found


def scored(llm: LLM, prompt: list[int], answer: list[int]) -> np.ndarray:
    """The log-probabilities of `answer` when it is part of the prompt."""
    tables = llm.generate([prompt + answer], SCORE)[0].prompt_logprobs
    assert tables is not None
    after = zip(answer, tables[len(prompt) :], strict=True)
    return np.asarray([table[token].logprob for token, table in after], np.float32)  # type: ignore[index]


def test_alone_in_a_batch_reversed_and_scored_are_bitwise_equal(folder: str) -> None:
    with engine(folder, deterministic=True) as llm:
        together = llm.generate(prompts(), GENERATE)
        turned = llm.generate(prompts()[::-1], GENERATE)[::-1]
        for prompt, one, other in zip(prompts(), together, turned, strict=True):
            alone = llm.generate([prompt], GENERATE)[0]
            assert np.array_equal(numbers(one), numbers(other))
            assert np.array_equal(numbers(one), numbers(alone))
            answer = one.outputs[0].token_ids
            assert np.array_equal(numbers(one), scored(llm, prompt, answer))
        assert llm.stats().prefix_hits > 0
        assert len(llm.ledger.entries) == 1


def test_chunks_and_prefix_cache_change_no_bit(folder: str) -> None:
    results = []
    for caching in (True, False):
        with engine(folder, deterministic=True, enable_prefix_caching=caching) as llm:
            llm.generate(prompts(), GENERATE)
            results.append(llm.generate(prompts(), GENERATE))
    for one, other in zip(*results, strict=True):
        assert np.array_equal(numbers(one), numbers(other))


@pytest.mark.slow
def test_the_ordinary_mode_is_not_bitwise(folder: str) -> None:
    """Otherwise the tests above would show nothing."""
    # Alone in a bucket of two rows, together in one of eight.
    shapes = {"decode_rows": [2, 8], "prefill_tokens": [64]}
    with engine(folder, compilation_config=shapes) as llm:
        together = llm.generate(prompts(), GENERATE)
        alone = [llm.generate([prompt], GENERATE)[0] for prompt in prompts()]
        equal = [
            np.array_equal(numbers(a), numbers(b)) for a, b in zip(together, alone, strict=True)
        ]
        assert not all(equal)
        for a, b in zip(together, alone, strict=True):
            np.testing.assert_allclose(numbers(a), numbers(b), atol=1e-4)


def test_other_shapes_cannot_be_chosen_beside_it(folder: str) -> None:
    with pytest.raises(ConfigError, match="decode_rows"):
        engine(folder, deterministic=True, compilation_config={"decode_rows": [8]})
