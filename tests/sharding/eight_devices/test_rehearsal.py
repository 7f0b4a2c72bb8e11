"""Programs of several devices that have run on empty steps before serving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import jengine
from jengine import SamplingParams
from jengine.runner import build
from tests.api.engines import answers, random_prompts
from tests.models.tiny_models import write_tiny_native

SETTINGS: dict[str, Any] = {
    "skip_tokenizer_init": True, "max_model_len": 64, "max_num_seqs": 4, "max_logprobs": 2,
    "max_num_batched_tokens": 32,
    "compilation_config": {"decode_rows": [4], "prefill_tokens": [32], "wait_for": "all",
                           "variants": ["greedy", "scored"]},
}  # fmt: skip
PARAMS = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True, prompt_logprobs=1)
TOGETHER = {"joint_replicas": True, "enable_expert_parallel": True, "data_parallel_size": 2}


@pytest.mark.parametrize(
    ("family", "settings"),
    [("llama", {"pipeline_parallel_size": 2}), ("qwen3_moe", TOGETHER)],
    ids=["pipeline", "joint replicas"],
)
def test_every_program_has_run_twice_and_left_nothing(
    family: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, prompts = write_tiny_native(tmp_path, family), random_prompts(3, 40, 17)
    with jengine.LLM(folder, **SETTINGS, **settings) as llm:
        assert {one.executions for one in llm.ledger.entries.values()} == {0}
        expected = answers(llm.generate(prompts, PARAMS))
    monkeypatch.setattr(build, "records_graphs", lambda platform: True)
    with jengine.LLM(folder, **SETTINGS, **settings) as llm:
        assert min(one.executions for one in llm.ledger.entries.values()) >= 2
        assert llm.ledger.hits == 0
        assert answers(llm.generate(prompts, PARAMS)) == expected
