"""The walk over transformers' causal classes: tiny configs, outcomes, and what is made of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jengine.bench.coverage import publish
from jengine.bench.coverage.__main__ import walk
from jengine.bench.coverage.kept import KeptOutcomes
from jengine.bench.coverage.worker import answer
from jengine.bench.fidelity.tiny import shrunk, tiny, varied
from jengine.bench.fidelity.transformers_process import ConfigRefused, Transformers
from jengine.errors import ConfigError
from tests.marks import slow


def test_sizes_shrink_by_name_and_keep_their_relations() -> None:
    defaults = {
        "hidden_size": 4096, "num_hidden_layers": 2, "num_attention_heads": 32,
        "num_key_value_heads": 32, "eos_token_id": [5, 128001], "pad_token_id": None,
        "layer_types": ["full_attention"] * 2, "n_inner": None, "rms_norm_eps": 1e-6,
        "text_config": {
            "hidden_size": 2048, "num_hidden_layers": 3, "layer_types": ["full_attention"] * 3
        },
    }  # fmt: skip
    found = shrunk(defaults)
    assert found == {
        "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "eos_token_id": 2,
        "text_config": {"hidden_size": 64, "num_hidden_layers": 3},
    }  # fmt: skip
    assert shrunk({**defaults, "num_key_value_heads": 8})["num_key_value_heads"] == 2
    assert tiny("HunYuanDenseV1ForCausalLM", defaults)["head_dim"] == 16
    assert varied("LlamaForCausalLM", {**defaults, "mlp_bias": False})["mlp_bias"] is True


def test_outcomes_are_kept_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "coverage.json"
    kept = KeptOutcomes(file, ["--only", "A"])
    kept.add("AForCausalLM", {"outcome": "equal", "by": "name", "error": 1e-6})
    kept.add("BForCausalLM", {"outcome": "refused", "reason": "x" * 1000})
    assert not kept.has_differences
    again = KeptOutcomes(file, [])
    again.add("CForCausalLM", {"outcome": "different", "by": "generic", "error": 1.0})
    assert again.has_differences
    counts = json.loads(file.read_text())["counts"]
    assert (counts["equal by name"], counts["refused"], counts["different"]) == (1, 1, 1)
    assert len(again.classes["BForCausalLM"]["reason"]) == 300


def test_what_is_published_is_what_was_found() -> None:
    """`python -m jengine.bench.coverage.publish` writes it."""
    assert publish.main(["--check"]) == 0
    found = json.loads(publish.RESULT.read_text(encoding="utf-8"))
    assert found["counts"]["different"] == found["counts"]["broke"] == 0


def test_only_classes_that_run_are_listed() -> None:
    classes = {
        "AForCausalLM": {"outcome": "equal", "by": "generic", "error": 0.0, "needs": ["n_head"]},
        "BForCausalLM": {"outcome": "equal", "by": "name", "error": 0.0},
        "CForCausalLM": {"outcome": "refused", "reason": "a | b\nc"},
    }
    result = {
        "classes": classes,
        "counts": dict.fromkeys(publish.OUTCOMES, 1),
        "by_name": {"text encoders": {"known": 3, "of": 33}},
        "versions": {"transformers": "5"},
    }
    assert json.loads(publish.proven_classes(result)) == {"AForCausalLM": ["n_head"]}
    assert "| `CForCausalLM` | refused | a \\| b c |" in publish.table(result)
    assert "BForCausalLM" not in publish.table(result)


@pytest.mark.parametrize(
    "architecture",
    [
        *slow(
            "CodeGenForCausalLM", "AfmoeForCausalLM", "NanoChatForCausalLM", "FalconForCausalLM",
            "Kolibri1ForCausalLM", "BertLMHeadModel", "WhisperForCausalLM", "OlmoForCausalLM",
            "Ernie4_5_MoeForCausalLM", "OpenAIGPTLMHeadModel", "GraniteMoeSWAForCausalLM",
        ),
    ],
)  # fmt: skip
def test_the_generic_reader_answers_as_transformers(architecture: str) -> None:
    pytest.importorskip("transformers")
    with Transformers() as theirs:
        found = answer(theirs, {"architecture": architecture})
    assert (found["outcome"], found["by"]) == ("equal", "generic")


def test_a_class_without_a_tiny_model_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Transformers):
        def __init__(self) -> None:
            pass

        def config(self, architecture: str, settings: object) -> dict[str, object]:
            raise ConfigRefused("no sizes")

    found = answer(Broken(), {"architecture": "AForCausalLM"})
    assert found == {"outcome": "no tiny model", "reason": "no sizes"}


@pytest.mark.slow
def test_an_unknown_class_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(ConfigError, match="--only Llama: no causal class"):
        next(walk(KeptOutcomes(None, []), ["Llama"], 1.0))
