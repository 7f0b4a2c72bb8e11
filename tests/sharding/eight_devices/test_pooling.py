"""Pooling models over several devices give the embeddings of one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.api.test_encoders import EMBEDDERS, PROMPTS, opened, saved
from tests.api.test_pooling import NO_BAR, cosines


@pytest.mark.parametrize("name", ["bert", "gemma3"])
def test_encoders_over_two_devices(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    saved(EMBEDDERS[name][0](), tmp_path)
    found = []
    for devices in (1, 2):
        with opened(tmp_path, tensor_parallel_size=devices) as llm:
            found.append([one.outputs.embedding for one in llm.embed(PROMPTS, **NO_BAR)])
    assert cosines(*found).min() > 0.99999
