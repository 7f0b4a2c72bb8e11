"""`jengine models`: what is said of folders that a family reads, or none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jengine.assembly.model_features import model_features
from jengine.cli.main import main
from tests.array_shapes.steps import tiny_speech, tiny_vision
from tests.models.tiny_models import write_tiny_native


def renamed(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_folder_of_a_family(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_tiny_native(tmp_path, "llama")
    renamed(folder, attention_probe=3)
    assert main(["models", "check", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["family"] == "Llama 2, Llama 3"
    assert found["keys of config.json that change no answer"] == ["attention_probe"]


def test_a_folder_without_a_family(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_tiny_native(tmp_path, "olmo2")
    renamed(folder, architectures=["NovelForCausalLM"])
    assert main(["models", "check", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "none for NovelForCausalLM; model_impl='generic'" in shown
    assert "self_attn.q_norm, self_attn.k_norm (whole)" in shown
    assert "prefix cache: yes" in shown
    renamed(folder, scale_depth=1.4)
    assert main(["models", "check", str(folder)]) == 1
    assert "scale_depth=1.4" in capsys.readouterr().err
    renamed(folder, architectures=["Gemma3nForCausalLM"])
    assert main(["models", "check", str(folder)]) == 1
    assert "embeddings of each layer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("mixtral", {
            "quantized weights": "8 matrices", "adapters": "experts included", "drafts": "n-grams",
            "pipeline stages": "yes", "tensor parallelism": "up to 2", "prefix cache": "yes",
        }),
        ("jamba", {"prefix cache": "every 256 tokens", "quantized weights": "int8 or int4"}),
    ],
)  # fmt: skip
def test_features_of_a_model(
    family: str, expected: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_tiny_native(tmp_path, family)
    assert main(["models", "check", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for feature, words in expected.items():
        assert words in found[feature], (feature, found[feature])


def test_a_feature_that_a_start_would_refuse() -> None:
    """The words are those of the start."""
    found = model_features(tiny_speech())
    refused = found["pipeline stages"]
    assert refused.startswith("no: WhisperForConditionalGeneration, which takes audio, with pi")
    assert refused.endswith("pipeline_parallel_size=2 is not built yet; leave it out.")
    assert found["drafts"].startswith("by n-grams")


def test_stages_that_images_are_added_behind() -> None:
    """Images enter the first stage only, which must have the layers that read them."""
    assert model_features(tiny_vision("llava"))["pipeline stages"] == "yes"
    refused = model_features(tiny_vision("qwen3_vl"))["pipeline stages"]
    assert "pipeline_parallel_size=2, whose first stage has 1 of the 2 layers that i" in refused


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "list"]) == 0
    assert "LlamaForCausalLM: Llama 2, Llama 3" in capsys.readouterr().out
