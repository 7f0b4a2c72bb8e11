"""Drafts on several devices: the same tokens as without, or a refusal that names the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import jengine
from jengine.errors import UnsupportedFeature
from tests.api.draft_heads import heads_engine, write_heads, write_mtp_model
from tests.api.engines import tiny_engine
from tests.api.test_draft_model import PROMPTS as OTHERS
from tests.api.test_speculation import params, same
from tests.models.tiny_models import write_tiny_native
from tests.sharding.eight_devices.same_answers import run

NGRAM = {
    "method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "adaptive": False,
}  # fmt: skip
DRAFTING: dict[str, Any] = {
    "speculative_config": NGRAM,
    "compilation_config": {"decode_rows": [32]},  # 8 requests of 1 + 3 tokens
}


def drafted(llm: jengine.LLM) -> int:
    return llm.stats().drafts.drafted


@pytest.mark.parametrize(
    "settings",
    [
        {"tensor_parallel_size": 4},
        {"prefill_context_parallel_size": 2},
        pytest.param({"data_parallel_size": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_same_tokens_with_drafts(folder: Path, on_one: list[Any], settings: dict[str, Any]) -> None:
    with tiny_engine(folder, **DRAFTING, **settings) as llm:
        assert run(llm) == on_one
        assert run(llm) == on_one  # from the prefix cache
        assert drafted(llm) > 0


@pytest.mark.parametrize("size", ["tensor_parallel_size", "prefill_context_parallel_size"])
def test_a_draft_model_is_on_the_devices_of_the_model(
    folder: Path, on_one: list[Any], tmp_path: Path, size: str
) -> None:
    sizes = {"vocab_size": 128, "max_position_embeddings": 1024, "num_hidden_layers": 1}
    draft = write_tiny_native(tmp_path, "llama", seed=3, **sizes)
    method = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": 2}
    settings = {**DRAFTING, "speculative_config": {**method, "adaptive": False}}
    with tiny_engine(folder, **{size: 2}, **settings) as llm:
        assert run(llm) == on_one
        assert drafted(llm) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("eagle3", {"tensor_parallel_size": 2}),
        ("eagle3", {"data_parallel_size": 2}),
        ("eagle3", {"prefill_context_parallel_size": 2, "tensor_parallel_size": 2}),
        ("medusa", {"tensor_parallel_size": 4}),
        ("medusa", {"prefill_context_parallel_size": 4}),
    ],
)
def test_heads_are_sharded_and_have_replicas(
    folder: Path, on_one: list[Any], tmp_path: Path, method: str, settings: dict[str, Any]
) -> None:
    heads = write_heads(tmp_path, method, folder)
    drafts = {"method": method, "model": str(heads), "num_speculative_tokens": 2}
    given = {**DRAFTING, "speculative_config": {**drafts, "adaptive": False}}
    with tiny_engine(folder, **given, **settings) as llm:
        assert run(llm) == on_one
        assert run(llm) == on_one  # from the prefix cache
        assert drafted(llm) > 0


@pytest.mark.slow
def test_a_layer_of_the_model_drafts_over_latents_where_devices_divide_tokens(
    tmp_path: Path,
) -> None:
    target, found = write_mtp_model(tmp_path, "deepseek_v3"), []
    for groups in (1, 2):
        with heads_engine(target, target, "mtp", prefill_context_parallel_size=groups) as llm:
            found.append(llm.generate(OTHERS, params()))
            assert drafted(llm) > 0
    same(found[1], found[0])


def test_pipelines_refuse_drafts_by_name(folder: Path) -> None:
    with pytest.raises(UnsupportedFeature, match="speculative_config with 2 pipeline stages"):
        tiny_engine(folder, **DRAFTING, pipeline_parallel_size=2)
