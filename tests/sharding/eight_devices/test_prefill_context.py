"""Prefill context parallelism: groups of devices divide the tokens of a step, and answers are those
of one device."""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import jengine
from jengine import SamplingParams
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.models.language_model import LanguageModel
from jengine.runner.variants.parts import Part
from tests.api.engines import tiny_engine
from tests.models.parallel_family import SETTINGS, assert_answers
from tests.models.tiny_models import write_tiny_native
from tests.sharding.eight_devices.same_answers import (
    same_after_131k_tokens,
    same_beside,
    same_in_every_way,
)


def context_parallel(folder: Path, groups: int, tensor: int = 1, **settings: Any) -> jengine.LLM:
    sizes = {"tensor_parallel_size": tensor, "prefill_context_parallel_size": groups}
    return tiny_engine(folder, **sizes, **settings)


@pytest.mark.parametrize(
    ("groups", "tensor"),
    [
        (2, 1),
        pytest.param(2, 2, marks=pytest.mark.slow),
        pytest.param(4, 2, marks=pytest.mark.slow),
        pytest.param(8, 1, marks=pytest.mark.slow),
    ],
)
def test_same_tokens_in_any_number_of_groups(
    folder: Path, on_one: list[Any], groups: int, tensor: int
) -> None:
    with context_parallel(folder, groups, tensor) as llm:
        assert dict(llm.mesh.shape)["pcp"] == groups
        same_in_every_way(llm, on_one)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [
    {"attention_backend": "xla"},
    {"kv_cache_dtype": "int8"},
    {"kv_offloading_size": 0.01},
    {"quantization": "int8"},
    {"data_parallel_size": 2},
    {"decode_context_parallel_size": 2, "tensor_parallel_size": 2},
    {"block_size": 4},
    {"max_num_seqs": 3},
    {"enable_chunked_prefill": False, "max_num_batched_tokens": 768,
     "compilation_config": {"prefill_tokens": [768]}},
], ids=lambda given: next(iter(given)))  # fmt: skip
def test_beside_other_features(folder: Path, settings: dict[str, Any]) -> None:
    same_beside(folder, settings, {"prefill_context_parallel_size": 2})


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gemma2", "gemma3", "mixtral", "qwen3"])
def test_families(tmp_path: Path, family: str) -> None:
    folder = write_tiny_native(tmp_path, family)
    same_beside(folder, {"max_model_len": 256}, {"prefill_context_parallel_size": 4})


@pytest.mark.slow
def test_sinks_and_norms(tmp_path: Path, own_model: LanguageModel) -> None:
    with jengine.LLM(tmp_path, **SETTINGS, prefill_context_parallel_size=2) as llm:
        assert_answers(llm, own_model)


@pytest.mark.slow
def test_prompts_are_scored(folder: Path) -> None:
    params = SamplingParams(max_tokens=2, temperature=0, prompt_logprobs=2, ignore_eos=True)
    prompts = [list(range(3, 3 + length)) for length in (5, 40, 77)]
    found = []
    for groups in (1, 4):
        with context_parallel(folder, groups) as llm:
            found.append([one.prompt_logprobs for one in llm.generate(prompts, params)])
    for ours, theirs in zip(*found, strict=True):
        for own, other in zip(ours[1:], theirs[1:], strict=True):
            assert own.keys() == other.keys()
            for token, entry in own.items():
                assert entry.logprob == pytest.approx(other[token].logprob, abs=1e-4)


def test_what_devices_exchange(folder: Path) -> None:
    """Keys and values go to all devices, nothing else of a layer does."""
    with context_parallel(folder, 4, attention_backend="xla") as llm:
        programs = llm.engine.loaded.programs
        bucket = next(b for b in llm.engine.loaded.ladders.buckets() if b.prefill_tokens)
        forward = programs.tiers[0].of(Part.FORWARD)
        compiled, _ = programs.compiler.compile(bucket, forward)
        layers, hidden = len(llm.engine.model.layers), llm.engine.model.hidden_size
    text = compiled.as_text()
    gathered = [
        tuple(map(int, shape.split(",")))
        for shape in re.findall(r"= \S*?\[([0-9,]+)\]\S* all-gather\(", text)
    ]
    *of_layers, of_prompts = gathered
    assert of_layers == [(bucket.num_tokens, 2, 8)] * (2 * layers)
    # Once a step: prompts' hidden states, which are kept for what scores them.
    assert math.prod(of_prompts) == bucket.prefill_tokens * hidden
    # Besides only the hidden states that logits are computed from.
    assert re.findall(r" (all-reduce|all-to-all|collective-permute|reduce-scatter)\(", text) == [
        "all-reduce"
    ]


@pytest.mark.parametrize(("settings", "error", "message"), [
    ({"prefill_context_parallel_size": 0}, ConfigError, "prefill_context_parallel_size"),
    ({"prefill_context_parallel_size": 16}, ConfigError, "tensor_parallel_size=16: expected 1 to"),
    ({"pipeline_parallel_size": 2}, UnsupportedFeature, "with pipeline_parallel_size=2"),
    ({"enable_prompt_embeds": True}, UnsupportedFeature, "with enable_prompt_embeds"),
    ({"deterministic": True}, UnsupportedFeature, "with deterministic=True"),
], ids=str)  # fmt: skip
def test_what_is_refused(
    folder: Path, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        tiny_engine(folder, **{"prefill_context_parallel_size": 2, **settings})


def test_layers_that_need_tokens_in_order_are_refused(tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, "qwen3_next")
    with pytest.raises(UnsupportedFeature, match="layers are not all of attention"):
        context_parallel(folder, 2)


@pytest.mark.slow
def test_a_prompt_of_131k_tokens(tmp_path: Path) -> None:
    same_after_131k_tokens(tmp_path, partial(context_parallel, block_size=128))
