"""Longrope: the engine's longest sequence decides which factors all sequences have."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from jengine import SamplingParams
from tests.api.engines import random_prompts, tiny_engine
from tests.models.tiny_models import LONGROPE, write_tiny

ORIGINAL = 64
NEW_TOKENS = 8


@pytest.mark.parametrize(("longest", "length"), [(ORIGINAL, 40), (256, 100)])
def test_tokens_equal_those_of_transformers(
    longest: int, length: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = write_tiny(
        tmp_path, "phi3", rope_parameters=LONGROPE, original_max_position_embeddings=ORIGINAL
    )
    with caplog.at_level(logging.WARNING):
        llm = tiny_engine(folder, "greedy", max_model_len=longest)
    assert ("LongRoPE" in caplog.text) == (longest > ORIGINAL)
    (prompt,) = random_prompts(length, seed=3)
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    (output,) = llm.generate([prompt], params)

    oracle = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        expected = oracle.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, length, dtype=torch.long),
            do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    assert output.outputs[0].token_ids == expected[0, length:].tolist()
