"""Encoders on two devices, each with half of the heads, embed as transformers does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers as hf

from tests.api.test_encoders import MODERN, PROMPTS, opened, saved
from tests.api.test_pooling import NO_BAR, cosines, hidden_states


@pytest.mark.parametrize("backend", ["auto", "xla"])
def test_embeddings(tmp_path: Path, backend: str) -> None:
    torch.manual_seed(0)
    model = saved(hf.ModernBertModel(hf.ModernBertConfig(**MODERN)), tmp_path)
    how = {"tensor_parallel_size": 2, "attention_backend": backend}
    with opened(tmp_path, pooler_config={"pooling_type": "CLS"}, **how) as llm:
        found = llm.embed(PROMPTS, **NO_BAR)
    expected = [hidden_states(model, ids)[0] for ids in PROMPTS]
    assert cosines([one.outputs.embedding for one in found], expected).min() > 0.99999
