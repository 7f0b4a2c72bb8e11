"""Decoders without a family: read as their tensors show, or refused with what is not understood."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jengine.errors import CheckpointError
from jengine.models import registry
from jengine.models.importing.imported import ImportedFamily
from jengine.weights.folder import register_imported, shapes_of
from jengine.weights.safetensors_io import load_model, save_pretrained
from tests.marks import slow
from tests.models.plain_logits import plain_logits
from tests.models.tiny_models import write_tiny_native

ARCHITECTURE = "NovelForCausalLM"
TOKENS = [1, 5, 9, 33, 2, 64, 7, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23]


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTERED", {})


def renamed(folder: Path, **changes: Any) -> dict[str, Any]:
    """Give the folder's model an architecture that nobody knows; its config.json."""
    file = folder / "config.json"
    hf = {**json.loads(file.read_text()), "architectures": [ARCHITECTURE], **changes}
    file.write_text(json.dumps(hf | {"model_type": "novel"}))
    return hf


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("llama", {"attention_bias": True, "num_key_value_heads": 1}),
        ("qwen3", {"tie_word_embeddings": True}),
        ("starcoder2", {}),
        *slow(
            ("olmo2", {}),
            ("mistral", {}),
            ("arcee", {"mlp_bias": True}),
            ("phi3", {}),
        ),
    ],
)
def test_a_decoder_is_what_its_own_family_makes_of_it(
    family: str, overrides: dict[str, Any], tmp_path: Path
) -> None:
    folder = write_tiny_native(tmp_path / "model", family, **overrides)
    expected = plain_logits(load_model(folder), TOKENS)
    renamed(folder)
    with pytest.raises(CheckpointError, match="jengine models check"):
        load_model(folder)
    register_imported(folder)
    model = load_model(folder)
    np.testing.assert_array_equal(plain_logits(model, TOKENS), expected)
    save_pretrained(model, tmp_path / "saved")
    np.testing.assert_array_equal(plain_logits(load_model(tmp_path / "saved"), TOKENS), expected)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("gemma2", {}, "attn_logit_softcapping"),
        ("mixtral", {}, "block_sparse_moe"),
        ("deepseek_v3", {}, "layer 1 differs from layer 0"),
        ("llama", {"scale_depth": 1.4}, "scale_depth=1.4"),
        ("llama", {"hidden_act": "xielu"}, "'hidden_act': given 'xielu'"),
        ("llama", {"num_hidden_layers": 5}, "expected 2, as the tensors say"),
        ("llama", {"max_position_embeddings": None}, "max_position_embeddings"),
        ("llama", {"position_embedding_type": "alibi"}, "position_embedding_type='alibi'"),
        ("bamba", {}, "layer 1 differs from layer 0|mamba"),
    ],
)
def test_what_is_not_understood_is_named(
    family: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = write_tiny_native(tmp_path, family)
    hf = renamed(folder, **changes)
    with pytest.raises(CheckpointError, match=message):
        ImportedFamily(hf, shapes_of(folder))


def test_a_layer_with_one_more_tensor_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, "llama")
    shapes = shapes_of(folder)
    for layer in range(2):
        shapes[f"model.layers.{layer}.self_attn.gate.weight"] = (4, 32)
    with pytest.raises(CheckpointError, match=r"self_attn\.gate\.weight, which the decoder"):
        ImportedFamily(renamed(folder), shapes)
    shapes = shapes_of(folder) | {"model.extra.weight": (3, 3)}
    with pytest.raises(CheckpointError, match=r"model\.extra\.weight"):
        ImportedFamily(renamed(folder), shapes)
