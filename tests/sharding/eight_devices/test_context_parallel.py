"""Decode context parallelism: devices have different tokens of each request, and answers are those
of one device."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jengine
from jengine.errors import ConfigError
from jengine.models.language_model import LanguageModel
from tests.api.engines import rebuilt, tiny_engine
from tests.models.parallel_family import SETTINGS, assert_answers
from tests.models.tiny_models import write_tiny_native
from tests.sharding.eight_devices.same_answers import run, same_after_131k_tokens, same_beside
from tests.sharding.eight_devices.test_drafts import DRAFTING


def context_engine(folder: Path, devices: int, context: int, **settings: Any) -> jengine.LLM:
    return tiny_engine(
        folder, tensor_parallel_size=devices, decode_context_parallel_size=context, **settings
    )


@pytest.mark.parametrize(
    ("devices", "context"),
    [
        (4, 2),
        pytest.param(8, 2, marks=pytest.mark.slow),
        pytest.param(8, 4, marks=pytest.mark.slow),
        pytest.param(8, 8, marks=pytest.mark.slow),
    ],
)
def test_same_tokens_on_any_number_of_devices(
    folder: Path, on_one: list[Any], devices: int, context: int
) -> None:
    with context_engine(folder, devices, context) as llm:
        assert dict(llm.mesh.shape)["dcp"] == context
        assert llm.engine.cache.block_size == 16 * context
        cache = llm.engine.loaded.state.caches[0]
        heads = min(2, devices // context)
        assert cache.size // cache.addressable_shards[0].data.size == heads * context
        assert run(llm) == on_one
        assert run(llm) == on_one  # from the prefix cache
        assert llm.stats().prefix_hits > 0
        with rebuilt(llm, num_blocks=20, max_num_batched_tokens=64) as small:
            assert run(small) == on_one


@pytest.mark.slow
@pytest.mark.parametrize("settings", [
    {"attention_backend": "xla"},
    {"kv_cache_dtype": "int8"},
    {"kv_offloading_size": 0.01},
    {"pipeline_parallel_size": 2, "tensor_parallel_size": 4},
    {"data_parallel_size": 2, "tensor_parallel_size": 4},
    {"block_size": 4},
    DRAFTING,
], ids=lambda given: next(iter(given)))  # fmt: skip
def test_beside_other_features(folder: Path, settings: dict[str, Any]) -> None:
    split = {"tensor_parallel_size": 4, "decode_context_parallel_size": 2}
    same_beside(folder, settings, split)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gemma2", "gemma3", "deepseek_v3", "mixtral"])
def test_families(tmp_path: Path, family: str) -> None:
    """Windows, of which each device has all tokens; vectors of latent attention; experts."""
    folder = write_tiny_native(tmp_path, family)
    split = {"tensor_parallel_size": 4, "decode_context_parallel_size": 4}
    same_beside(folder, {"max_model_len": 256}, split)


def test_a_sink_counts_once(tmp_path: Path, own_model: LanguageModel) -> None:
    settings = {**SETTINGS, "tensor_parallel_size": 4, "decode_context_parallel_size": 2}
    with jengine.LLM(tmp_path, **settings) as llm:
        assert_answers(llm, own_model)


def test_what_devices_exchange(folder: Path) -> None:
    """A layer adds one gathering of log-sum-exps and one sum of partial results, and no keys."""
    with context_engine(folder, 4, 2) as llm:
        programs = llm.engine.loaded.programs
        bucket = next(b for b in llm.engine.loaded.ladders.buckets() if not b.prefill_tokens)
        compiled, _ = programs.compiler.compile(bucket, programs.tiers[-1])
        layers = len(llm.engine.model.layers)
        cache = llm.engine.loaded.state.caches[0].addressable_shards[0].data.shape
    text = compiled.as_text()
    gathered = re.findall(r"= \S*\[([0-9,]*)\]\S* all-gather\(", text)
    assert len([shape for shape in gathered if shape.startswith("2,")]) == layers
    assert len(re.findall(r" reduce-scatter\(", text)) == layers
    whole = np.prod(cache)
    assert all(np.prod([*map(int, shape.split(","))]) < whole for shape in gathered)


@pytest.mark.parametrize(("devices", "context"), [(4, 3), (1, 2)])
def test_sizes_that_do_not_divide(folder: Path, devices: int, context: int) -> None:
    named = f"decode_context_parallel_size={context}: expected a divisor of the {devices} devices"
    with pytest.raises(ConfigError, match=named):
        context_engine(folder, devices, context)


@pytest.mark.slow
def test_a_prompt_of_131k_tokens(tmp_path: Path) -> None:
    def engine(folder: Path, devices: int, **settings: Any) -> jengine.LLM:
        return context_engine(folder, devices, devices, block_size=128 // devices, **settings)

    same_after_131k_tokens(tmp_path, engine)
