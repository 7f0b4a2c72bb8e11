"""Beams whose last blocks are copied find the same sequences on several devices as on one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jengine
from jengine import BeamSearchParams
from tests.api.engines import random_prompts, tiny_engine
from tests.models.tiny_models import write_tiny_native

PARAMS = BeamSearchParams(3, 10, ignore_eos=True)
PROMPTS = random_prompts(30, 9)
# Families, and how their engines are divided.
DIVIDED: dict[str, tuple[str, dict[str, Any]]] = {
    "heads": ("llama", {"tensor_parallel_size": 2}),
    "tokens of blocks": ("llama", {"tensor_parallel_size": 4, "decode_context_parallel_size": 2}),
    "prompts": ("llama", {"prefill_context_parallel_size": 2}),
    "replicas": ("llama", {"data_parallel_size": 2}),
    "states": ("qwen3_next", {"tensor_parallel_size": 2}),
    "latent": ("deepseek_v3", {"tensor_parallel_size": 2}),
}
WITHOUT: dict[str, tuple[str, dict[str, Any]]] = {
    "pipeline": ("llama", {"pipeline_parallel_size": 2}),
    "joint replicas": (
        "mixtral", {"data_parallel_size": 2, "enable_expert_parallel": True, "joint_replicas": True}
    ),
}  # fmt: skip


def found(llm: jengine.LLM) -> tuple[list[list[int]], list[float]]:
    beams = [beam for output in llm.beam_search(PROMPTS, PARAMS) for beam in output.sequences]
    return [beam.tokens for beam in beams], [beam.cum_logprob for beam in beams]


@pytest.mark.slow
@pytest.mark.parametrize("how", [*DIVIDED, *WITHOUT])
def test_the_same_beams_as_on_one_device(how: str, tmp_path: Path) -> None:
    family, settings = {**DIVIDED, **WITHOUT}[how]
    folder = write_tiny_native(tmp_path, family)
    sizes = {"max_model_len": 128}
    with tiny_engine(folder, **sizes) as one:
        tokens, scores = found(one)
    with tiny_engine(folder, **sizes, **settings) as llm:
        assert llm.engine.cache.keeps_partial_blocks == (how in DIVIDED)
        own_tokens, own_scores = found(llm)
    assert own_tokens == tokens
    np.testing.assert_allclose(own_scores, scores, atol=1e-3)
