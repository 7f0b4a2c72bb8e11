"""GGUF files of hybrids give the log-probabilities of the transformers models they were made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jengine.errors import CheckpointError
from jengine.weights.folder import open_checkpoint, read_model_config
from jengine.weights.safetensors_io import load_model, save_pretrained
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
    loaded = load_model(files.gguf, dtype="float32")
    save_pretrained(loaded, tmp_path / "saved")
    found = torch.tensor(plain_logits(loaded, TOKENS)).log_softmax(-1)
    for folder in (files.folder, tmp_path / "saved"):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        with torch.no_grad():
            expected = model(torch.tensor([TOKENS])).logits[0].float().log_softmax(-1)
        assert (found - expected).abs().max() < 2e-4


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


def in_q8_0(stored: bool) -> Callable[[Any], None]:
    """Round matrices to Q8_0, which a file then holds as such or as plain numbers."""
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType.Q8_0

    def change(writer: Any) -> None:
        add = writer.add_tensor

        def rounded(name: str, array: np.ndarray) -> None:
            if array.ndim == 1 or array.shape[-1] % 32 or "conv" in name or "norm" in name:
                return add(name, array)
            packed = gguf.quants.quantize(array, kind)
            if stored:
                return add(name, packed, raw_dtype=kind)
            return add(name, gguf.quants.dequantize(packed, kind).reshape(array.shape))

        writer.add_tensor = rounded

    return change


@pytest.mark.slow
@pytest.mark.parametrize("family", HYBRIDS)
def test_q8_0_is_what_it_stands_for(family: str, tmp_path: Path) -> None:
    logits = []
    for stored in (True, False):
        folder = tmp_path / str(stored)
        file = write_hybrid(folder, family, write_tiny_native, in_q8_0(stored)).gguf
        assert (read_model_config(file).quantization is not None) is stored
        logits.append(plain_logits(load_model(file, dtype="float32"), TOKENS))
    np.testing.assert_allclose(*logits, atol=1e-4)
