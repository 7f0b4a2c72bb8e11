"""Quantized weights on several devices: values and scales are sharded, answers are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jengine
from jengine import SamplingParams
from tests.weights.quantized_models import LAYOUTS, write_quantized

PROMPTS = [{"prompt_token_ids": list(range(3, 3 + size))} for size in (7, 19)]
MESHES = {
    "sharded": {"tensor_parallel_size": 2},
    "stages": {"pipeline_parallel_size": 2},
    "copies of heads": {"tensor_parallel_size": 4},
}


def engine(folder: Path, **settings: Any) -> jengine.LLM:
    return jengine.LLM(
        folder, skip_tokenizer_init=True, max_model_len=64, max_num_seqs=2,
        max_num_batched_tokens=32, num_gpu_blocks_override=16, enforce_eager=True, **settings,
    )  # fmt: skip


def tokens(llm: jengine.LLM) -> list[tuple[int, ...]]:
    greedy = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    return [tuple(one.outputs[0].token_ids) for one in llm.generate(PROMPTS, greedy)]


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", ["W4A16 group", "FP8 block", "GPTQ 4"])
def test_quantized_checkpoints_answer_as_on_one_device(
    name: str, mesh: str, tmp_path: Path
) -> None:
    folder = write_quantized(tmp_path, "llama", LAYOUTS[name]).quantized
    with engine(folder) as llm:
        expected = tokens(llm)
    with engine(folder, **MESHES[mesh]) as llm:
        assert tokens(llm) == expected
        shapes = shard_shapes(llm, "layers.0.mlp.gate_up.weight")
        ways = MESHES[mesh].get("tensor_parallel_size", 1)
        assert shapes == {(32 // (1 if name == "FP8 block" else 2), 2, 64 // ways)}


@pytest.mark.parametrize("name", ["int8", "int4", "fp8"])
def test_shards_are_rounded_as_the_whole_weight(name: str, tmp_path: Path) -> None:
    folder = write_quantized(tmp_path, "qwen2", LAYOUTS["W8A16 int"]).plain
    found = []
    for settings in ({}, MESHES["sharded"]):
        with engine(folder, quantization=name, **settings) as llm:
            found.append((tokens(llm), llm.engine.loaded.stored_parameters()))
    (expected, whole), (answers, shards) = found
    assert answers == expected
    for path, array in whole.items():
        np.testing.assert_array_equal(shards[path], array, err_msg=path)


def shard_shapes(llm: jengine.LLM, path: str) -> set[tuple[int, ...]]:
    array: jax.Array = llm.engine.loaded.stored_parameters()[path]
    return {shard.data.shape for shard in array.addressable_shards}


@pytest.mark.parametrize("mesh", ["sharded", "copies of heads"])
def test_codes_in_the_cache_are_sharded_by_head(mesh: str, folder: Path) -> None:
    with engine(folder, kv_cache_dtype="int8") as llm:
        expected = tokens(llm)
        width = llm.engine.loaded.state.caches[0].shape[-1]
    with engine(folder, kv_cache_dtype="int8", **MESHES[mesh]) as llm:
        assert tokens(llm) == expected
        shards = llm.engine.loaded.state.caches[0].addressable_shards
        assert {shard.data.shape[-1] for shard in shards} == {width // 2}  # of two KV heads
