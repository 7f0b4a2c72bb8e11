"""Tunix's rollout engine on the mesh of a trainer whose parameters are split in its own way."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jengine.integrations.tunix_models import dense_decoder
from tests.integrations import fake_tunix
from tests.integrations.test_tunix import GREEDY, PROMPTS, SETTINGS, word_tokenizer
from tests.integrations.test_tunix_models import models


@pytest.fixture
def tunix() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        fake_tunix.install(patch)
        yield importlib.import_module("jengine.integrations.tunix")
        sys.modules.pop("jengine.integrations.tunix")


@pytest.mark.slow
def test_split_parameters_are_taken_and_answer_as_on_one_device(tunix: Any, tmp_path: Path) -> None:
    ours, theirs = models(tmp_path, "qwen3")
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(4, 1), ("fsdp", "tp"))
    split = {
        path: jax.device_put(
            array,
            NamedSharding(mesh, PartitionSpec("fsdp" if array.shape[0] % 4 == 0 else None)),
        )
        for path, array in theirs.items()
    }
    one = tunix.JengineRollout(ours, word_tokenizer(), None, GREEDY, **SETTINGS)
    four = tunix.JengineRollout(
        split,
        word_tokenizer(),
        mesh,
        GREEDY,
        model=tmp_path,
        mapping=dense_decoder,
        **SETTINGS,
    )
    assert four.llm.mesh.devices.size == 4
    for _ in range(2):
        expected, found = one.generate(PROMPTS, GREEDY), four.generate(PROMPTS, GREEDY)
        for reference, tokens in zip(expected.tokens, found.tokens, strict=True):
            np.testing.assert_array_equal(tokens, reference)
        four.update_params(split)
    one.llm.shutdown()
    four.llm.shutdown()
