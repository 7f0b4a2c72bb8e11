"""What torch is watched at is what our own model passes at its tap points, family by family."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jengine.research.bundle import read_bundle
from jengine.research.metrics import unit_roundoff
from jengine.research.torch_process import SCRIPT, ReferenceJob
from jengine.weights.safetensors_io import load_model
from tests.models.tiny_models import FAMILIES, write_tiny
from tests.research.bundles import forward

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from jengine.research import torch_reference  # noqa: E402 - a program: it needs torch

LENGTHS = (1, 40)
# What the default run takes: the usual build, and one with its own position table.
DEFAULT_RUN = {"llama", "gpt2"}
ALL_FAMILIES = [
    pytest.param(family, marks=[pytest.mark.slow] * (family not in DEFAULT_RUN))
    for family in FAMILIES
]


def job(model: Path, out: Path, dtype: str, truth_dtype: str, **changes: Any) -> dict[str, Any]:
    generator = np.random.default_rng(3)
    prompts = [generator.integers(3, 97, length).tolist() for length in LENGTHS]
    settings = {
        "model": str(model), "dtype": dtype, "truth_dtype": truth_dtype, "device": "cpu",
        "prompts": prompts, "new_tokens": 3, "out": str(out), **changes,
    }  # fmt: skip
    return vars(ReferenceJob(**settings))


@pytest.mark.parametrize("family", ALL_FAMILIES)
@pytest.mark.slow
def test_tap_points_of_every_family(family: str, tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "model", family)
    torch_reference.write_bundle(job(folder, tmp_path / "bundle", "float32", "float64"))
    reference = read_bundle(tmp_path / "bundle")
    model = load_model(folder)
    assert reference.model.architecture == FAMILIES[family]
    assert reference.model.num_layers == len(model.config.layers)
    for ids, truth, working in zip(
        reference.prompts, reference.truth, reference.working, strict=True
    ):
        ours = forward(model, ids)
        assert {*truth.points, "logits"} == set(ours)
        for name, value in ours.items():
            for run in (truth, working):
                theirs = run.logits if name == "logits" else run.points[name]
                assert np.abs(theirs).max() > 1e-3
                distance = np.linalg.norm(value - theirs) / np.linalg.norm(theirs)
                assert distance < 2e-5, name


@pytest.mark.slow
def test_the_truth_has_the_rounded_weights(tmp_path: Path) -> None:
    """Otherwise the rounding of weights, the same for all, would hide errors of arithmetic."""
    folder = write_tiny(tmp_path / "model", "llama")
    torch_reference.write_bundle(job(folder, tmp_path / "bundle", "bfloat16", "float32"))
    reference = read_bundle(tmp_path / "bundle")
    truth, working = reference.truth[1], reference.working[1]
    np.testing.assert_array_equal(truth.points["embed"], working.points["embed"])
    apart = np.abs(truth.logits - working.logits).max() / np.abs(truth.logits).max()
    assert unit_roundoff("bfloat16") / 2 < apart < 0.2


@pytest.mark.slow
def test_large_vocabularies_are_cut_to_the_likeliest_of_the_truth(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "model", "qwen2")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    torch_reference.write_bundle(job(folder, whole, "bfloat16", "float32"))
    torch_reference.write_bundle(job(folder, cut, "bfloat16", "float32", most_logits=30))
    whole, cut = read_bundle(whole), read_bundle(cut)
    for number in range(len(LENGTHS)):
        kept = cut.columns[number]
        assert kept is not None and kept.shape == (LENGTHS[number], 30)
        for run, part in ((whole.truth, cut.truth), (whole.working, cut.working)):
            expected = np.take_along_axis(run[number].logits, kept.astype(np.int64), -1)
            np.testing.assert_array_equal(part[number].logits, expected)
            np.testing.assert_array_equal(part[number].normalizer, run[number].normalizer)
            np.testing.assert_array_equal(part[number].given, run[number].given)
        best = np.argsort(-whole.truth[number].logits, -1, kind="stable")[:, :30]
        np.testing.assert_array_equal(np.sort(kept, -1), np.sort(best, -1))


def test_continuations_are_greedy(tmp_path: Path) -> None:
    """With a cache, as without."""
    folder = write_tiny(tmp_path / "model", "mistral")
    given = job(folder, tmp_path / "bundle", "float32", "float64", new_tokens=20)
    torch_reference.write_bundle(given)
    path = read_bundle(tmp_path / "bundle").truth[1].continuation
    model = load_model(folder)
    known = [*given["prompts"][1], *path.tokens]
    logits = forward(model, known)["logits"][len(given["prompts"][1]) - 1 : -1]
    assert logits.argmax(-1).tolist() == path.tokens == path.ids[:, 0].tolist()
    np.testing.assert_allclose(logits.max(-1), path.logits[:, 0], atol=1e-4)


def run_script(tmp_path: Path, content: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "job.json"
    file.write_text(content)
    command = [sys.executable, str(SCRIPT), str(file)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
def test_as_a_program_it_says_in_a_line_what_is_wrong(tmp_path: Path) -> None:
    given = job(tmp_path / "no model", tmp_path / "bundle", "float32", "float64")
    done = run_script(tmp_path, json.dumps(given))
    assert done.returncode == 1
    assert "no model" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "bundle").exists()


def test_models_of_an_unknown_build_are_refused() -> None:
    with pytest.raises(torch_reference.NotComparable, match="Linear has no model or transformer"):
        torch_reference.part(torch.nn.Linear(2, 2), torch_reference.BODIES)
