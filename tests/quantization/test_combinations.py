"""Weights rounded at load together with features of the scheduler: the same tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jengine import SamplingParams
from tests.api.engines import answers, random_prompts, rebuilt, tiny_engine
from tests.models.tiny_models import write_tiny_native

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = random_prompts(5, 40, 17, 29)
DRAFTS: dict[str, Any] = {
    "method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "adaptive": False,
}  # fmt: skip
# Each builds engines of its own.
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("backend", ["auto", "xla"])
@pytest.mark.parametrize("name", ["int8", "int4", "fp8"])
def test_chunks_preemption_prefixes_and_drafts_change_nothing(
    name: str, backend: str, tmp_path: Path
) -> None:
    """By the CPU's kernels, where they have the format, as by XLA."""
    folder = write_tiny_native(tmp_path, "llama", hidden_size=32, intermediate_size=64)
    settings: dict[str, Any] = {
        "dtype": "float32", "max_model_len": 512, "quantization": name,
        "attention_backend": backend,
    }  # fmt: skip
    with tiny_engine(folder, **settings) as llm:
        with rebuilt(llm, prefix_caching=False):
            expected = answers(llm.generate(PROMPTS, GREEDY, use_tqdm=False))
        few = {"max_num_batched_tokens": 48, "long_prefill_token_threshold": 16}
        with rebuilt(llm, num_blocks=7, **few):
            assert answers(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == expected
            assert llm.stats().preemptions
        for _ in range(2):
            assert answers(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == expected
        assert llm.stats().prefix_hits
    compilation = {"decode_rows": [32]}
    drafting = {**settings, "speculative_config": DRAFTS}
    with tiny_engine(folder, **drafting, compilation_config=compilation) as llm:
        assert answers(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == expected
        assert llm.stats().drafts.drafted
