"""Caches of int8 and FP8: answers near those of plain ones, prefix hits, and half the memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jengine
from jengine import SamplingParams
from jengine.config import CacheGroup, CacheSpec
from jengine.errors import ConfigError
from jengine.runner.step.attention_backend import refuse_odd, stored_as
from jengine.runner.step.group_arrays import block_bytes
from pallas_kernels.choice import cpu_problem
from pallas_kernels.layout import FP8_BITS
from sharding.placement import Placement
from tests.models.tiny_models import write_tiny_native
from tests.pallas_kernels.implementations import TRITON

PROMPT = list(range(40, 90))
ANSWER = [66, 12, 7, 300, 41]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1)


def engine(attention: str, kv_cache_dtype: str, **settings: Any) -> jengine.LLM:
    return jengine.LLM(
        "demo", attention_backend=attention, kv_cache_dtype=kv_cache_dtype, max_num_seqs=4,
        max_model_len=256, enforce_eager=True, show_progress=False, **settings,
    )  # fmt: skip


def numbers(llm: jengine.LLM, *prompts: list[int]) -> list[list[float]]:
    """Log-probabilities of each answer."""
    made = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], GREEDY)
    return [
        [step[token].logprob for token, step in zip(one.token_ids, one.logprobs, strict=True)]
        for [one] in (output.outputs for output in made)
    ]


def of_given(llm: jengine.LLM) -> np.ndarray:
    """Log-probabilities of given tokens, so that engines are compared on the same ones."""
    return np.asarray(llm.compute_logprobs([PROMPT + ANSWER]))[0]


@pytest.mark.slow
@pytest.mark.parametrize("attention", [TRITON])
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_triton_kernels_read_and_write_codes(attention: str, kind: str, tmp_path: Path) -> None:
    """In Triton's interpreter. Weights are float32, attention is of bfloat16."""
    folder = write_tiny_native(tmp_path, "qwen3")
    found = []
    for backend in ("xla", attention):
        with jengine.LLM(
            folder, attention_backend=backend, kv_cache_dtype=kind, skip_tokenizer_init=True,
            max_num_seqs=2, max_model_len=64, max_num_batched_tokens=32, enforce_eager=True,
            show_progress=False,
        ) as llm:  # fmt: skip
            found.append(numbers(llm, [5, 6, 7, 8, 9] * 8))
    assert np.abs(np.asarray(found[0]) - np.asarray(found[1])).max() < 0.1


@pytest.fixture(scope="module", params=[pytest.param("xla", marks=pytest.mark.slow), "cpu"])
def attention(request: pytest.FixtureRequest) -> str:
    if request.param == "cpu" and (problem := cpu_problem()):
        pytest.skip(problem)
    return request.param


@pytest.fixture(scope="module")
def plain() -> Iterator[np.ndarray]:
    with engine("xla", "auto") as llm:
        yield of_given(llm)


@pytest.mark.slow
def test_answers_are_near_those_of_a_plain_cache(attention: str, plain: np.ndarray) -> None:
    with engine(attention, "int8") as llm:
        error = np.abs(of_given(llm) - plain)
        assert 0 < error.max() < 0.1
        [first] = numbers(llm, PROMPT)
        hits = llm.stats().prefix_hits
        assert numbers(llm, PROMPT)[0] == pytest.approx(first, abs=0.05)
        assert llm.stats().prefix_hits > hits
        assert " in int8" in repr(llm)


@pytest.mark.slow
def test_fp8_is_near_as_well(attention: str, plain: np.ndarray) -> None:
    with engine(attention, "fp8") as llm:
        error = np.abs(of_given(llm) - plain)
        assert 0 < error.max() < 0.3


@pytest.mark.slow
@pytest.mark.skipif(bool(cpu_problem()), reason="the CPU kernels do not run here")
def test_an_answer_has_the_same_bits_alone_and_in_a_batch() -> None:
    prompts = [PROMPT[:n] for n in (3, 20, 50)]
    with engine("cpu", "int8", deterministic=True) as llm:
        alone = [one for prompt in prompts for one in numbers(llm, prompt)]
        llm.reset_prefix_cache()
        assert numbers(llm, *prompts[::-1])[::-1] == alone


def test_a_token_takes_half_the_memory() -> None:
    with engine("xla", "int8_per_token_head", kv_cache_memory_bytes=2**22) as llm:
        [group], [cache] = llm.engine.cache.groups, llm.engine.loaded.state.caches
        size, blocks = llm.engine.cache.block_size, llm.engine.cache.num_blocks[0]
        dim = group.spec.head_dim
        wide, small = (block_bytes(group, size, one) for one in ("bfloat16", cache.dtype))
        assert small / wide == (dim + 2) / (2 * dim)
        assert cache.nbytes == blocks * small <= 2**22
        assert blocks > 1.8 * (2**22 // wide)


def test_a_gpu_reads_codes_in_pairs() -> None:
    groups = (CacheGroup(CacheSpec("full", kv_heads=2, head_dim=8), (0, 1)),)
    refuse_odd("triton", groups, 16)
    refuse_odd("cpu", groups, 1)
    with pytest.raises(ConfigError, match=r"even block_size and even heads; given 1\."):
        refuse_odd("triton", groups, 1)


def test_blocks_of_codes_are_named_by_the_devices_that_share_them() -> None:
    meshes: Any = (jax.sharding.AbstractMesh((1, count), ("dp", "tp")) for count in (1, 2))
    one, two = map(Placement, meshes)
    assert stored_as(FP8_BITS, one) == "fp8"
    assert stored_as(np.float32, two) == "float32"
    assert stored_as(FP8_BITS, two) == "fp8 divided by 2 and 1"
    assert stored_as(np.float32, one, "fa4") == "float32, finite values"


def test_what_is_not_there_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"kv_cache_dtype='int2'.*'int8'"):
        engine("xla", "int2")
