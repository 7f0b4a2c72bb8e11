"""Deterministic mode: tokens and log-probabilities are bitwise the same however they came about.

With batch-invariant kernels by the ordinary programs; elsewhere by one that runs every token alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jengine import LLM, EngineArgs, SamplingParams
from jengine.assembly.sizes import determinism
from jengine.assembly.sizes.determinism import batch_dependence, needs_one_segment
from jengine.errors import ConfigError
from jengine.outputs import RequestOutput
from jengine.weights.folder import read_model_config
from pallas_kernels.choice import cpu_problem
from tests.models.tiny_models import DISTINCT, write_tiny_native
from tests.pallas_kernels.implementations import CPU

LENGTHS = (1, 5, 40, 130, 17)
# Sizes that fill no vector of a processor.
SIZES = {"vocab_size": 211, "hidden_size": 72, "intermediate_size": 100}
COMMON = {"max_tokens": 12, "ignore_eos": True, "logprobs": 0}
GREEDY = SamplingParams(temperature=0, **COMMON)
# A program that can do all, in few shapes: each takes a while to compile.
SHAPES = {"variants": ["scored"], "decode_rows": [2, 8], "prefill_tokens": [32, 128]}
OTHERS = [*(one for one in DISTINCT if one != "qwen3"), "gpt_oss", "glm4_moe", "cohere2"]
SCORE = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, prompt_logprobs=0)


def prompts() -> list[list[int]]:
    """Random prompts of mixed length."""
    generator = np.random.default_rng(0)
    return [generator.integers(3, 90, length).tolist() for length in LENGTHS]


def settings() -> list[SamplingParams]:
    """A kind of sampling for each prompt."""
    kinds = [
        {"temperature": 0},
        {"temperature": 1.3},
        {"temperature": 1.1, "top_p": 0.9, "min_p": 0.001},
        {"temperature": 0.9, "top_k": 60, "top_p": 0.97},
        {"temperature": 0.8, "repetition_penalty": 1.3, "frequency_penalty": 0.2},
    ]
    return [SamplingParams(seed=seed, **kind, **COMMON) for seed, kind in enumerate(kinds)]


@pytest.fixture(
    scope="module",
    params=["qwen3", *(pytest.param(f, marks=pytest.mark.slow) for f in OTHERS)],
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp(request.param)
    write_tiny_native(path, request.param, dtype="bfloat16", **SIZES)
    return str(path)


def engine(folder: str, **given: object) -> LLM:
    sizes = {"max_model_len": 192, "max_num_seqs": 8, "deterministic": True}
    return LLM(
        folder, skip_tokenizer_init=True, enforce_eager=True, show_progress=False, **sizes | given
    )  # fmt: skip


@pytest.fixture(scope="module", params=[CPU, "xla"])
def llm(folder: str, request: pytest.FixtureRequest) -> Iterator[LLM]:
    shapes = SHAPES if request.param == "cpu" else None
    with engine(folder, attention_backend=request.param, compilation_config=shapes) as llm:
        yield llm


def facts(output: RequestOutput) -> tuple[list[int], bytes]:
    """Tokens, and the bits of their log-probabilities."""
    found = output.outputs[0].logprobs_array
    assert found is not None
    return list(output.outputs[0].token_ids), found.tobytes()


def scored(llm: LLM, prompt: list[int], answer: list[int]) -> bytes:
    """The log-probabilities of `answer` when it is part of the prompt."""
    tables = llm.generate([prompt + answer], SCORE)[0].prompt_logprobs
    assert tables is not None
    after = zip(answer, tables[len(prompt) :], strict=True)
    return np.asarray([table[token].logprob for token, table in after], np.float32).tobytes()  # type: ignore[index]


def test_alone_in_a_batch_reversed_and_scored_are_bitwise_equal(llm: LLM) -> None:
    together = llm.generate(prompts(), settings())
    turned = llm.generate(prompts()[::-1], settings()[::-1])[::-1]
    for index, prompt in enumerate(prompts()):
        expected = facts(together[index])
        assert facts(turned[index]) == expected
        assert facts(llm.generate([prompt], settings()[index])[0]) == expected
        assert scored(llm, prompt, expected[0]) == expected[1]
    assert llm.stats().prefix_hits > 0
    is_one_shape = llm.engine.args.attention_backend == "xla"
    assert llm.engine.schedule.one_segment == is_one_shape
    parts = [features.part for _, features in llm.ledger.entries]
    assert (len(set(parts)) == len(parts)) == is_one_shape, "one program of each part"


@pytest.mark.parametrize("llm", [CPU], indirect=True)
def test_other_sizes_chunks_and_preemption_change_no_bit(llm: LLM, folder: str) -> None:
    expected = [facts(output) for output in llm.generate(prompts(), settings())]
    shapes = {"variants": ["scored"], "decode_rows": [3], "prefill_tokens": [64]}
    # Too few blocks for the two longest, which come first, to grow beside each other.
    sizes = {"max_num_seqs": 3, "num_gpu_blocks_override": 13}
    order = sorted(range(len(LENGTHS)), key=lambda index: -LENGTHS[index])
    with engine(folder, enable_prefix_caching=False, compilation_config=shapes, **sizes) as other:
        wanted = [settings()[index] for index in order]
        outputs = other.generate([prompts()[index] for index in order], wanted)
        assert [facts(output) for output in outputs] == [expected[index] for index in order]
        # A request whose layers all have a window holds few blocks however long it is.
        grows = any(group.spec.window is None for group in other.engine.model.groups)
        assert (other.stats().preemptions > 0) == grows


@pytest.mark.slow
@pytest.mark.parametrize("llm", [CPU], indirect=True)
def test_steps_at_once_change_no_bit(llm: LLM, folder: str) -> None:
    expected = [facts(output) for output in llm.generate(prompts(), settings())]
    with engine(folder, num_scheduler_steps=4, enable_prefix_caching=False) as other:
        assert [facts(output) for output in other.generate(prompts(), settings())] == expected


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["processed_logprobs", "raw_logits"])
@pytest.mark.skipif(bool(cpu_problem()), reason="there are no kernels")
def test_other_modes_of_log_probabilities(folder: str, mode: str) -> None:
    with engine(folder, logprobs_mode=mode) as llm:
        together = llm.generate(prompts(), settings())
        for prompt, wanted, output in zip(prompts(), settings(), together, strict=True):
            assert facts(llm.generate([prompt], wanted)[0]) == facts(output)


@pytest.mark.slow
def test_one_segment_is_bitwise_equal_in_chunks_and_with_prefix_hits(folder: str) -> None:
    results = []
    for caching in (True, False):
        with engine(folder, enable_prefix_caching=caching, attention_backend="xla") as llm:
            llm.generate(prompts(), GREEDY)
            results.append([facts(output) for output in llm.generate(prompts(), GREEDY)])
    assert results[0] == results[1]


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["gpt2"], indirect=True)
def test_the_ordinary_mode_of_xla_is_not_bitwise(folder: str) -> None:
    """Otherwise the tests above would show nothing. XLA's sums happen to come out alike in other
    families of this size."""
    # Alone in a bucket of two rows, together in one of eight.
    shapes = {"decode_rows": [2, 8], "prefill_tokens": [64]}
    ordinary = {"deterministic": False, "attention_backend": "xla", "compilation_config": shapes}
    with engine(folder, **ordinary) as llm:
        together = llm.generate(prompts(), GREEDY)
        alone = [llm.generate([prompt], GREEDY)[0] for prompt in prompts()]
        assert list(map(facts, together)) != list(map(facts, alone))


def test_what_runs_in_one_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = read_model_config(write_tiny_native(tmp_path, "llama"))
    args = EngineArgs("any", deterministic=True)
    monkeypatch.setattr(determinism, "available_backend", lambda *_: ("cpu", None))
    assert not needs_one_segment(args.groups.steps, config)
    assert "sharded" in str(batch_dependence(args.groups.steps, config, 2))
    monkeypatch.setattr(determinism, "has_own_body", lambda config: True)
    assert "body of its own" in str(batch_dependence(args.groups.steps, config, 1))
    for backend in ("xla", "triton"):
        monkeypatch.setattr(determinism, "available_backend", lambda *_, b=backend: (b, None))
        assert needs_one_segment(args.groups.steps, config)
        assert not needs_one_segment(EngineArgs("any").groups.steps, config)


def test_other_shapes_cannot_be_chosen_beside_one(folder: str) -> None:
    shapes = {"decode_rows": [8]}
    with pytest.raises(ConfigError, match="decode_rows"):
        engine(folder, attention_backend="xla", compilation_config=shapes)
