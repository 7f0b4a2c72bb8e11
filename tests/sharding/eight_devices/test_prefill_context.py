"""Prefill context parallelism: groups of devices divide the tokens of a step, and answers are those
of one device."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jengine
from jengine import SamplingParams
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.models import registry
from jengine.weights.safetensors_io import save_pretrained
from tests.api.engines import rebuilt, tiny_engine
from tests.models.parallel_family import (
    SETTINGS,
    ParallelFamily,
    assert_answers,
    model_of,
)
from tests.models.tiny_models import write_tiny_native
from tests.sharding.eight_devices.test_tensor_parallel import run

LONG = 131_072


def striped(folder: Path, groups: int, tensor: int = 1, **settings: Any) -> jengine.LLM:
    sizes = {"tensor_parallel_size": tensor, "prefill_context_parallel_size": groups}
    return tiny_engine(folder, **sizes, **settings)


@pytest.fixture(scope="module")
def on_one(folder: Path) -> list[Any]:
    with tiny_engine(folder) as llm:
        return run(llm)


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
    with striped(folder, groups, tensor) as llm:
        assert dict(llm.mesh.shape)["pcp"] == groups
        assert run(llm) == on_one
        assert run(llm) == on_one  # from the prefix cache
        assert llm.stats().prefix_hits > 0
        # Prompts in several chunks, beside decodes; requests are preempted.
        with rebuilt(llm, num_blocks=20, max_num_batched_tokens=64) as small:
            assert run(small) == on_one
            assert small.stats().preemptions > 0


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
    sizes = {name: 1 for name in settings if name.endswith("parallel_size")}
    with tiny_engine(folder, **{**settings, **sizes}) as one:
        expected = run(one)
    with tiny_engine(folder, **settings, prefill_context_parallel_size=2) as llm:
        assert run(llm) == expected
        assert run(llm) == expected


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gemma2", "gemma3", "mixtral", "qwen3"])
def test_families(tmp_path: Path, family: str) -> None:
    folder = write_tiny_native(tmp_path, family)
    with tiny_engine(folder, max_model_len=256) as one:
        expected = run(one)
    with striped(folder, 4, max_model_len=256) as llm:
        assert run(llm) == expected


@pytest.mark.slow
def test_sinks_and_norms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTERED", {})
    jengine.register_model(ParallelFamily())
    model = model_of(1)
    save_pretrained(model, tmp_path)
    with jengine.LLM(tmp_path, **SETTINGS, prefill_context_parallel_size=2) as llm:
        assert_answers(llm, model)


@pytest.mark.slow
def test_prompts_are_scored(folder: Path) -> None:
    params = SamplingParams(max_tokens=2, temperature=0, prompt_logprobs=2, ignore_eos=True)
    prompts = [list(range(3, 3 + length)) for length in (5, 40, 77)]
    found = []
    for groups in (1, 4):
        with striped(folder, groups) as llm:
            found.append([one.prompt_logprobs for one in llm.generate(prompts, params)])
    for ours, theirs in zip(*found, strict=True):
        for own, other in zip(ours[1:], theirs[1:], strict=True):
            assert own.keys() == other.keys()
            for token, entry in own.items():
                assert entry.logprob == pytest.approx(other[token].logprob, abs=1e-4)


def test_what_devices_exchange(folder: Path) -> None:
    """Keys and values go to all devices, nothing else of a layer does."""
    with striped(folder, 4, attention_backend="xla") as llm:
        programs = llm.engine.loaded.programs
        bucket = next(b for b in llm.engine.loaded.ladders.buckets() if b.prefill_tokens)
        unscored = next(tier for tier in programs.tiers if tier.prompt_logprobs is None)
        compiled, _ = programs.compiler.compile(bucket, unscored)
        layers = len(llm.engine.model.layers)
    text = compiled.as_text()
    gathered = [
        tuple(map(int, shape.split(",")))
        for shape in re.findall(r"= \S*?\[([0-9,]+)\]\S* all-gather\(", text)
    ]
    assert gathered == [(bucket.num_tokens, 2, 8)] * (2 * layers)
    # Besides only the hidden states that logits are computed from.
    assert re.findall(r" (all-reduce|all-to-all|collective-permute|reduce-scatter)\(", text) == [
        "all-reduce"
    ]


@pytest.mark.parametrize(("settings", "error", "message"), [
    ({"prefill_context_parallel_size": 0}, ConfigError, "prefill_context_parallel_size"),
    ({"prefill_context_parallel_size": 16}, ConfigError, "tensor_parallel_size=16: expected 1 to"),
    ({"pipeline_parallel_size": 2}, UnsupportedFeature, "with pipeline_parallel_size=2"),
    ({"enable_lora": True}, UnsupportedFeature, "with enable_lora"),
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
        striped(folder, 2)


@pytest.mark.slow
def test_a_prompt_of_131k_tokens(tmp_path: Path) -> None:
    folder = write_tiny_native(
        tmp_path, "llama", max_position_embeddings=LONG, vocab_size=128, num_hidden_layers=1
    )
    prompt = np.random.default_rng(0).integers(3, 120, LONG - 16).tolist()
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1)
    settings = {
        "max_model_len": LONG, "max_num_seqs": 2, "max_num_batched_tokens": 4096,
        "compilation_config": {"decode_rows": [2], "prefill_tokens": [4096]},
        "block_size": 128, "num_gpu_blocks_override": LONG // 128 + 2,
    }  # fmt: skip
    found = []
    for groups in (1, jax.device_count()):
        with striped(folder, groups, **settings) as llm:
            found.append(llm.generate([prompt], params)[0].outputs[0])
    assert found[0].token_ids == found[1].token_ids
    np.testing.assert_allclose(
        *[[row[token].logprob for row, token in zip(one.logprobs, one.token_ids, strict=True)]
          for one in found],
        atol=1e-3,
    )  # fmt: skip
