"""Beams begin with copies of others' last blocks: every kind of cache gives what it gives without
any caching, and a step runs one token of each beam."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jengine
from jengine import BeamSearchParams
from tests.api.engines import WINDOW, random_prompts, tiny_engine
from tests.models.tiny_models import write_tiny_native

# Families, and what the model and the engine are besides.
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "full": ("llama", {}, {}),
    "sliding": ("mistral", {"sliding_window": WINDOW}, {}),
    "codes": ("llama", {}, {"kv_cache_dtype": "int8"}),
    "latent": ("deepseek_v3", {}, {}),
    "recurrent": ("qwen3_next", {}, {"mamba_block_size": 32}),
    "offloaded": ("llama", {}, {"kv_offloading_size": 0.05, "num_gpu_blocks_override": 60}),
}
SLOW = {kind: pytest.mark.slow for kind in KINDS if kind != "full"}
PARAMS = BeamSearchParams(3, 20, ignore_eos=True)  # over the end of a block


def found(llm: jengine.LLM, prompts: list[list[int]]) -> tuple[list[list[int]], list[float]]:
    """The best sequences and their scores."""
    beams = [
        beam for output in llm.beam_search(prompts, PARAMS, use_tqdm=False)
        for beam in output.sequences
    ]  # fmt: skip
    return [beam.tokens for beam in beams], [beam.cum_logprob for beam in beams]


@pytest.mark.parametrize("kind", [pytest.param(one, marks=SLOW.get(one, ())) for one in KINDS])
def test_a_step_runs_one_token_of_each_beam(kind: str, tmp_path: Path) -> None:
    family, model, settings = KINDS[kind]
    folder = write_tiny_native(tmp_path, family, max_position_embeddings=1024, **model)
    prompts = random_prompts(41, 3)
    with tiny_engine(
        folder, enable_prefix_caching=False, **settings_without_tiers(settings)
    ) as llm:
        tokens, scores = found(llm, prompts)
    with tiny_engine(folder, **settings) as llm:
        assert llm.engine.cache.keeps_partial_blocks
        before = llm.stats()
        own_tokens, own_scores = found(llm, prompts)
        after = llm.stats()
        for _ in range(3):  # from a full cache
            assert found(llm, prompts)[0] == tokens
    assert own_tokens == tokens
    tolerance = 0.05 if kind == "codes" else 1e-3
    np.testing.assert_allclose(own_scores, scores, atol=tolerance)
    asked = after.prefix_queries - before.prefix_queries
    ran = asked - (after.prefix_hits - before.prefix_hits)
    assert ran == sum(map(len, prompts)) + 2 * 3 * (PARAMS.max_tokens - 1)


def settings_without_tiers(settings: dict[str, Any]) -> dict[str, Any]:
    """What goes without cached prefixes."""
    return {key: value for key, value in settings.items() if key != "kv_offloading_size"}


def test_requests_may_say_that_they_fork(full_engine: jengine.LLM) -> None:
    (tokens,) = random_prompts(21, seed=7)
    full_engine.reset_prefix_cache()
    params = jengine.SamplingParams(max_tokens=1, temperature=0)
    cached = []
    for forks in (True, True, False):
        (output,) = full_engine.generate(
            [{"prompt_token_ids": list(tokens), "forks": forks}], params, use_tqdm=False
        )
        cached.append(output.num_cached_tokens)
        tokens.append(3)
    block = full_engine.engine.cache.block_size
    assert cached == [0, 21, 22 // block * block]
    full_engine.reset_prefix_cache()
