"""Encoder-decoder models on several devices: each has some of the heads and columns of both parts.
Answers are those of one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jengine import SamplingParams
from tests.api.engines import answers, tiny_engine
from tests.media import encoder_prompts
from tests.media.encoder_prompts import CROSS

GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, logprobs=0)
pytestmark = pytest.mark.slow  # three engines each


def run(folder: Path, family: str, **settings: Any) -> tuple[Any, np.ndarray, dict[str, float]]:
    """Tokens, their log-probabilities, and what one device has of each matrix."""
    with tiny_engine(folder, max_model_len=48, **settings) as llm:
        outputs = llm.generate(encoder_prompts.of(family), GREEDY)
        logprobs = np.array([one.outputs[0].cumulative_logprob for one in outputs])
        loaded = llm.engine.runners[0].loaded
        shares = {
            name: np.prod(leaf.sharding.shard_shape(leaf.shape)) / leaf.size
            for name, leaf in zip(loaded.order.names, loaded.leaves, strict=True)
            if name.endswith((".query.weight", ".kv.weight", ".out.weight", ".up.weight"))
        }
        return answers(outputs), logprobs, shares


@pytest.mark.parametrize("family", CROSS)
def test_answers_are_those_of_one_device(family: str, tmp_path: Path) -> None:
    folder = encoder_prompts.write(tmp_path, family)
    tokens, logprobs, _ = run(folder, family)
    assert len(set(logprobs.round(3))) == len(tokens), "both prompts matter"
    for backend in ("auto", "xla"):
        found = run(folder, family, tensor_parallel_size=2, attention_backend=backend)
        assert found[0] == tokens
        np.testing.assert_allclose(found[1], logprobs, atol=1e-4)
        assert any(".cross." in name for name in found[2])
        assert set(found[2].values()) == {0.5}, found[2]
