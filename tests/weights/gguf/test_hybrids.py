"""GGUF files of hybrids give the log-probabilities of the transformers models they were made of."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jengine.errors import CheckpointError
from jengine.weights.folder import open_checkpoint, read_model_config
from jengine.weights.safetensors_io import load_model
from tests.models.plain_logits import plain_logits
from tests.models.tiny_models import write_tiny_native
from tests.weights.gguf.hybrid_models import HYBRIDS, write_hybrid

TOKENS = [3, 5, 7, 11, 13, 17, 19, 23]
# Its multipliers are in the weights of files.
MULTIPLIED = {"falcon_h1"}


@pytest.mark.parametrize("family", [one for one in HYBRIDS if one not in MULTIPLIED])
def test_config_and_tensors_are_those_of_the_folder(family: str, tmp_path: Path) -> None:
    files = write_hybrid(tmp_path, family, write_tiny_native)
    own, other = read_model_config(files.gguf), read_model_config(files.folder)
    free: dict[str, Any] = {"dtype": other.dtype, "initializer_range": other.initializer_range,
                            "max_position": other.max_position}  # fmt: skip
    assert dataclasses.replace(own, **free) == other
    found, expected = open_checkpoint(files.gguf), open_checkpoint(files.folder)
    for name, tensor in expected.items():
        assert tuple(found[name].shape) == tuple(tensor.shape), name
        np.testing.assert_allclose(found[name].read(), tensor.read(), atol=1e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("family", HYBRIDS)
def test_log_probabilities_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    files = write_hybrid(tmp_path, family)
    model = transformers.AutoModelForCausalLM.from_pretrained(files.folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS])).logits[0].float()
    found = torch.tensor(plain_logits(load_model(files.gguf, dtype="float32"), TOKENS))
    difference = (found.log_softmax(-1) - logits.log_softmax(-1)).abs().max()
    assert difference < 2e-4


def test_files_that_contradict_themselves_are_refused(tmp_path: Path) -> None:
    rates = {"blk.0.ssm_a": np.zeros((4, 1), np.float32)}
    files = write_hybrid(tmp_path / "rates", "bamba", write_tiny_native, tensors=rates)
    with pytest.raises(CheckpointError, match=r"'blk.0.ssm_a' holds rates of 0 or more"):
        load_model(files.gguf, dtype="float32")

    def uneven(writer: Any) -> None:
        writer.add_ssm_inner_size(65)

    files = write_hybrid(tmp_path / "width", "bamba", write_tiny_native, uneven)
    with pytest.raises(CheckpointError, match=r"inner_size is 65, expected a multiple of ssm.time"):
        read_model_config(files.gguf)

    def headless(writer: Any) -> None:
        writer.add_head_count_kv([0, 0, 0])

    files = write_hybrid(tmp_path / "heads", "bamba", write_tiny_native, headless)
    with pytest.raises(CheckpointError, match=r"head_count_kv is .* one number above zero"):
        read_model_config(files.gguf)

    def other(writer: Any) -> None:
        writer.add_feed_forward_length([48, 0])

    files = write_hybrid(tmp_path / "mlps", "nemotron_h", write_tiny_native, other)
    with pytest.raises(
        CheckpointError, match=r"feed_forward_length is .* one number above zero for"
    ):
        read_model_config(files.gguf)
