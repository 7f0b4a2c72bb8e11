"""Quantized weights and caches together with features of the scheduler: the same tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jengine import SamplingParams
from tests.api.engines import answers, random_prompts, rebuilt, tiny_engine
from tests.models.tiny_models import write_tiny_native
from tests.weights.quantized_models import LAYOUTS, write_quantized

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = random_prompts(5, 40, 17, 29)
DRAFTS: dict[str, Any] = {
    "method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "adaptive": False,
}  # fmt: skip
ROUNDED: list[dict[str, str]] = [
    {"quantization": "int8"}, {"quantization": "int4"}, {"quantization": "fp8"},
    {"kv_cache_dtype": "int8"}, {"kv_cache_dtype": "fp8"},
]  # fmt: skip
FILES = ["W4A16 group, zeros", "W8A16 channel", "FP8 channel", "DeepSeek FP8", "GPTQ 4", "AWQ"]
# Each builds engines of its own.
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("backend", ["auto", "xla"])
@pytest.mark.parametrize("given", [*ROUNDED, *FILES], ids=str)
def test_chunks_preemption_prefixes_and_drafts_change_nothing(
    given: dict[str, str] | str, backend: str, tmp_path: Path
) -> None:
    """By the CPU's kernels, where they have the format, as by XLA."""
    own = given if isinstance(given, dict) else {}
    if isinstance(given, str):
        folder = write_quantized(tmp_path, "llama", LAYOUTS[given]).quantized
    else:
        folder = write_tiny_native(tmp_path, "llama", hidden_size=32, intermediate_size=64)
    settings: dict[str, Any] = {
        "dtype": "float32", "max_model_len": 512, "attention_backend": backend, **own,
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
