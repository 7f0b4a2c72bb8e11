"""Encoder-decoder models on several devices: each has some of the heads and columns of both parts.
Answers are those of one device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jengine import SamplingParams
from tests.api.engines import answers, tiny_engine
from tests.media.tiny_bart import write_bart
from tests.media.tiny_t5 import KINDS, write_t5
from tests.media.tiny_whisper import sound, write_whisper

GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, logprobs=0)
SOURCES = [[9, 1], [0, *range(20, 40), 1], [60, 61, 1]]
SOUNDS = [sound(1.0, 220), sound(0.8, 1800), sound(0.1, 700)]
PROMPTS = [[5, 6, 7], [8], [*range(3, 25)]]  # of the decoder, after the token that starts it


def write_flan(folder: Path) -> Path:
    return write_t5(folder, KINDS["v1.1"])


WRITERS: dict[str, Callable[[Path], Path]] = {
    "bart": write_bart, "t5": write_flan, "whisper": write_whisper,
}  # fmt: skip
pytestmark = pytest.mark.slow  # three engines each


def asked(family: str) -> list[Any]:
    """Prompts of both parts."""
    audio = [{"prompt": "", "multi_modal_data": {"audio": (one, 16000)}} for one in SOUNDS]
    sources: list[Any] = audio if family == "whisper" else SOURCES
    return [
        {"encoder_prompt": source, "decoder_prompt": {"prompt_token_ids": ids}}
        for source, ids in zip(sources, PROMPTS, strict=True)
    ]


def run(folder: Path, family: str, **settings: Any) -> tuple[Any, np.ndarray, dict[str, float]]:
    """Tokens, their log-probabilities, and what one device has of each matrix."""
    with tiny_engine(folder, max_model_len=48, **settings) as llm:
        outputs = llm.generate(asked(family), GREEDY)
        logprobs = np.array([one.outputs[0].cumulative_logprob for one in outputs])
        loaded = llm.engine.runners[0].loaded
        shares = {
            name: np.prod(leaf.sharding.shard_shape(leaf.shape)) / leaf.size
            for name, leaf in zip(loaded.order.names, loaded.leaves, strict=True)
            if name.endswith((".query.weight", ".kv.weight", ".out.weight", ".up.weight"))
        }
        return answers(outputs), logprobs, shares


@pytest.mark.parametrize("family", WRITERS)
def test_answers_are_those_of_one_device(family: str, tmp_path: Path) -> None:
    folder = WRITERS[family](tmp_path)
    tokens, logprobs, _ = run(folder, family)
    assert len(set(logprobs.round(3))) == len(tokens), "both prompts matter"
    for backend in ("auto", "xla"):
        found = run(folder, family, tensor_parallel_size=2, attention_backend=backend)
        assert found[0] == tokens
        np.testing.assert_allclose(found[1], logprobs, atol=1e-4)
        assert any(".cross." in name for name in found[2])
        assert set(found[2].values()) == {0.5}, found[2]
