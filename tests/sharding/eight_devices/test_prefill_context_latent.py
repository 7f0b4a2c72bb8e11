"""Prefill context parallelism of latent attention: groups of devices gather the entries of all
tokens, and answers are those of one device."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from jengine.runner.variants.parts import Part
from tests.api.engines import tiny_engine
from tests.models.tiny_models import write_tiny_native
from tests.sharding.eight_devices.same_answers import run, same_beside, same_in_every_way
from tests.sharding.eight_devices.test_prefill_context import context_parallel

SIZES = {"max_position_embeddings": 1024, "vocab_size": 128}


@pytest.fixture(scope="module")
def latent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_native(tmp_path_factory.mktemp("deepseek"), "deepseek_v3", **SIZES)


@pytest.fixture(scope="module")
def latent_on_one(latent: Path) -> list[Any]:
    with tiny_engine(latent) as llm:
        return run(llm)


@pytest.mark.parametrize(
    ("groups", "tensor", "context"),
    [
        (2, 1, 1),
        pytest.param(4, 2, 1, marks=pytest.mark.slow),
        pytest.param(8, 1, 1, marks=pytest.mark.slow),
        pytest.param(2, 2, 2, marks=pytest.mark.slow),
        pytest.param(2, 4, 2, marks=pytest.mark.slow),
    ],
)
def test_same_tokens_in_any_number_of_groups(
    latent: Path, latent_on_one: list[Any], groups: int, tensor: int, context: int
) -> None:
    with context_parallel(latent, groups, tensor, decode_context_parallel_size=context) as llm:
        cache = llm.engine.loaded.state.caches[0]
        assert cache.size // cache.addressable_shards[0].data.size == context
        same_in_every_way(llm, latent_on_one, few_blocks=20 // context)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [
    {"attention_backend": "xla"},
    {"kv_offloading_size": 0.01},
    {"quantization": "int8"},
    {"data_parallel_size": 2},
    {"block_size": 4},
    {"enable_chunked_prefill": False, "max_num_batched_tokens": 768,
     "compilation_config": {"prefill_tokens": [768]}},
], ids=lambda given: next(iter(given)))  # fmt: skip
def test_beside_other_features(latent: Path, settings: dict[str, Any]) -> None:
    same_beside(latent, settings, {"prefill_context_parallel_size": 2})


@pytest.mark.slow
@pytest.mark.parametrize("family", ["deepseek_v2", "minicpm3", "glm4_moe_lite"])
def test_families(tmp_path: Path, family: str) -> None:
    folder = write_tiny_native(tmp_path, family)
    same_beside(folder, {"max_model_len": 256}, {"prefill_context_parallel_size": 4})


def test_what_devices_exchange(tmp_path: Path) -> None:
    """Entries go to all devices; they are smaller than the keys and values of all heads."""
    folder = write_tiny_native(tmp_path, "minicpm3")
    with context_parallel(folder, 4, max_model_len=256, attention_backend="xla") as llm:
        programs = llm.engine.loaded.programs
        bucket = next(b for b in llm.engine.loaded.ladders.buckets() if b.prefill_tokens)
        forward = programs.tiers[0].of(Part.FORWARD)
        compiled, _ = programs.compiler.compile(bucket, forward)
        layers, hidden = llm.engine.model.layer_specs, llm.engine.model.hidden_size
    entries = [(bucket.num_tokens, spec.head_dim) for specs in layers for spec in specs]
    text = compiled.as_text()
    gathered = [
        tuple(map(int, shape.split(",")))
        for shape in re.findall(r"= \S*?\[([0-9,]+)\]\S* all-gather\(", text)
    ]
    *of_layers, of_prompts = gathered
    assert of_layers == entries
    # Once a step: prompts' hidden states, which are kept for what scores them.
    assert math.prod(of_prompts) == bucket.prefill_tokens * hidden
    # Besides only the hidden states that logits are computed from.
    assert re.findall(r" (all-reduce|all-to-all|collective-permute|reduce-scatter)\(", text) == [
        "all-reduce"
    ]
