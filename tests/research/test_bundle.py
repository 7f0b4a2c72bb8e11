"""Bundles that are damaged, half written, of another version or of nothing are refused by name."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jengine.errors import CheckpointError
from jengine.research.bundle import read_bundle
from tests.models.tiny_models import write_tiny_native
from tests.research.bundles import NEW_TOKENS, PROMPTS, write_bundle


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    model = write_tiny_native(folder / "model", "llama")
    return write_bundle(folder / "bundle", model)


@pytest.fixture
def bundle(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "bundle"))


def describe(bundle: Path, **changes: Any) -> None:
    """Change the description."""
    file = bundle / "bundle.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def store(bundle: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    """Change the tensors, with a digest that fits."""
    file = bundle / "tensors.safetensors"
    arrays = load_file(file)
    change(arrays)
    save_file(arrays, file)
    describe(bundle, sha256=hashlib.sha256(file.read_bytes()).hexdigest())


@pytest.mark.slow
def test_a_whole_bundle(bundle: Path) -> None:
    found = read_bundle(bundle)
    assert found.prompts == PROMPTS
    assert (found.dtype, found.truth_dtype, found.new_tokens) == ("float32", "float64", NEW_TOKENS)
    assert found.model.architecture == "LlamaForCausalLM"
    assert found.columns == [None, None]
    for ids, truth, working in zip(PROMPTS, found.truth, found.working, strict=True):
        assert truth.logits.shape == (len(ids), 97)
        assert list(truth.points) == list(working.points)
        assert truth.points["layers.1.output"].shape == (len(ids), 32)
        assert (truth.given_logprobs < 0).all()
        assert len(truth.continuation.tokens) == NEW_TOKENS


def test_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is not a bundle: there is no bundle\.json"):
        read_bundle(tmp_path)
    with pytest.raises(CheckpointError, match=r"is not a bundle"):
        read_bundle(tmp_path / "nowhere")


def test_half_written(bundle: Path) -> None:
    (bundle / "tensors.safetensors").unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_bundle(bundle)


@pytest.mark.parametrize("text", ["{", "[]", '"text"', '{"format": "other"}', "\udc80"])
def test_descriptions_of_something_else(bundle: Path, text: str) -> None:
    (bundle / "bundle.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(CheckpointError, match=r"bundle\.json: (cannot be read|is not the descr)"):
        read_bundle(bundle)


def test_another_version(bundle: Path) -> None:
    describe(bundle, version=99)
    with pytest.raises(CheckpointError, match="version 99; this jengine reads version 1"):
        read_bundle(bundle)


def test_a_single_changed_byte(bundle: Path) -> None:
    file = bundle / "tensors.safetensors"
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="is damaged, or of another bundle"):
        read_bundle(bundle)


def test_tensors_that_are_none(bundle: Path) -> None:
    file = bundle / "tensors.safetensors"
    file.write_bytes(b"nothing of the kind")
    describe(bundle, sha256=hashlib.sha256(file.read_bytes()).hexdigest())
    with pytest.raises(CheckpointError, match="is not a safetensors file"):
        read_bundle(bundle)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompts": []}, "'prompts'"),
        ({"prompts": [[1], []]}, "none of them empty"),
        ({"prompts": [[1.5]]}, "lists of token ids"),
        ({"prompts": [*PROMPTS, [1, 2]]}, "for each of 3 prompts"),
        ({"dtype": "int8"}, "'dtype': given 'int8'"),
        ({"model": {"architecture": "X"}}, "'vocab_size': given nothing"),
        ({"model": 3}, "expected a JSON object"),
        ({"greedy": {"truth": []}}, "no 'truth' entry"),
        ({"greedy": {"truth": [{}, {}], "working": [{}, {}]}}, "prompt 0 is malformed"),
        ({"new_tokens": 9}, "is not 9 steps long"),
        ({"software": None}, "'software'"),
    ],
)
def test_descriptions_that_make_no_sense(
    bundle: Path, changes: dict[str, Any], message: str
) -> None:
    describe(bundle, **changes)
    with pytest.raises(CheckpointError, match=message):
        read_bundle(bundle)


def test_tensors_that_do_not_fit_the_description(bundle: Path) -> None:
    store(bundle, lambda arrays: arrays.pop("working.1.normalizer"))
    with pytest.raises(CheckpointError, match=r"no working\.1\.normalizer of 45 rows"):
        read_bundle(bundle)


def test_values_of_other_lengths(bundle: Path) -> None:
    store(bundle, lambda arrays: arrays.update({"truth.0.norm": np.zeros((3, 32), np.float32)}))
    with pytest.raises(CheckpointError, match=r"no values of 8 tokens at truth\.0\.\['norm'\]"):
        read_bundle(bundle)
