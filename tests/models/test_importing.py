"""Decoders without a family: read as their tensors show, or refused with what is not understood."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jengine.config import HeadTransformConfig
from jengine.errors import CheckpointError
from jengine.models import registry
from jengine.models.importing.experts import experts_of
from jengine.models.importing.imported import ImportedFamily
from jengine.models.tensors.decoder_pieces import decoder_pieces
from jengine.weights.folder import is_imported, register_imported, shapes_of
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
        ("mixtral", {}, "experts: how their router"),
        ("deepseek_v3", {}, "qkv is not found"),
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


def proven(monkeypatch: pytest.MonkeyPatch, folder: Path, *needs: str) -> None:
    """Say that the generic reader was compared on the architecture."""
    file = folder.with_name("proven.json")
    file.write_text(json.dumps({ARCHITECTURE: needs}))
    monkeypatch.setattr("jengine.models.importing.proven.FILE", file)


def test_only_an_architecture_that_was_compared_is_read_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_tiny_native(tmp_path / "model", "llama")
    expected = plain_logits(load_model(folder), TOKENS)
    hf = renamed(folder)
    register_imported(folder, is_asked=False)
    assert registry.registered(ARCHITECTURE) is None and not is_imported(hf)
    proven(monkeypatch, folder, "hidden_act", "rope_parameters")
    with caplog.at_level("INFO"):
        register_imported(folder, is_asked=False)
    assert f"{ARCHITECTURE} is read by the generic reader" in caplog.text and is_imported(hf)
    np.testing.assert_array_equal(plain_logits(load_model(folder), TOKENS), expected)


def test_what_the_reader_cannot_assume_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_native(tmp_path / "model", "llama")
    renamed(folder)
    proven(monkeypatch, folder, "hidden_act", "layer_types")
    with pytest.raises(CheckpointError, match="given no layer_types, which the generic reader"):
        register_imported(folder, is_asked=False)
    register_imported(folder, {"layer_types": ["full_attention"] * 2}, is_asked=False)


def test_a_users_family_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tiny_native(tmp_path / "model", "llama")
    hf = renamed(folder)
    proven(monkeypatch, folder)
    own = ImportedFamily(hf, shapes_of(folder))
    monkeypatch.setitem(registry._REGISTERED, ARCHITECTURE, SimpleNamespace(**vars(own)))
    assert not is_imported(hf)


EXPERTS = {
    "mlp.gate.weight": (4, 8), "mlp.expert_bias": (4,),
    "mlp.shared_expert.gate_proj.weight": (6, 8), "mlp.shared_expert.up_proj.weight": (6, 8),
    "mlp.shared_expert.down_proj.weight": (8, 6),
}  # fmt: skip


@pytest.mark.parametrize(
    ("stored", "layout"),
    [
        ({"mlp.experts.gate_up_proj": (4, 6, 8), "mlp.experts.down_proj": (4, 8, 3)},
         "outputs_first"),
        ({"mlp.experts.gate_up_proj": (4, 8, 6), "mlp.experts.down_proj": (4, 3, 8)},
         "inputs_first"),
        ({f"mlp.experts.{i}.{n}.weight": (8, 3) if n == "w2" else (3, 8)
          for i in range(4) for n in ("w1", "w2", "w3")}, "apart"),
    ],
)  # fmt: skip
def test_experts_are_found(stored: dict[str, tuple[int, ...]], layout: str) -> None:
    found = experts_of({**EXPERTS, **stored}, "mlp")
    assert (found.count, found.size, found.shared_size) == (4, 3, 6)
    assert found.names.get("expert_layout", "apart") == layout
    assert found.choice_bias and found.names["choice_bias"] == "mlp.expert_bias"
    with pytest.raises(CheckpointError, match=r"mlp\.other\.weight"):
        experts_of({**EXPERTS, **stored, "mlp.other.weight": (3, 3)}, "mlp")


def test_experts_that_are_missing_or_of_other_shapes_are_refused() -> None:
    with pytest.raises(CheckpointError, match="does not fit"):
        experts_of(
            {**EXPERTS, "mlp.experts.gate_up_proj": (4, 6, 8), "mlp.experts.down_proj": (4, 5, 3)},
            "mlp",
        )
    one = {f"mlp.experts.0.{name}.weight": (3, 8) for name in ("w1", "w2", "w3")}
    with pytest.raises(CheckpointError, match="3 matrices of experts, for a router of 4"):
        experts_of({**EXPERTS, **one}, "mlp")


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


BERT = {
    "architectures": ["BertLMHeadModel"], "hidden_size": 8, "num_hidden_layers": 1,
    "num_attention_heads": 2, "max_position_embeddings": 16, "layer_norm_eps": 1e-12,
    "hidden_act": "gelu", "vocab_size": 5, "is_decoder": True,
}  # fmt: skip


def bert_shapes() -> dict[str, tuple[int, ...]]:
    layer = "bert.encoder.layer.0."
    matrices = {
        **{f"{layer}attention.self.{name}": (8, 8) for name in ("query", "key", "value")},
        f"{layer}attention.output.dense": (8, 8), f"{layer}intermediate.dense": (12, 8),
        f"{layer}output.dense": (8, 12), "cls.predictions.transform.dense": (8, 8),
    }  # fmt: skip
    norms = (
        "bert.embeddings.LayerNorm", f"{layer}attention.output.LayerNorm",
        f"{layer}output.LayerNorm", "cls.predictions.transform.LayerNorm",
    )  # fmt: skip
    tables = {"word": 5, "position": 16, "token_type": 2}
    return {
        **{f"bert.embeddings.{name}_embeddings.weight": (rows, 8) for name, rows in tables.items()},
        **{f"{name}.weight": shape for name, shape in matrices.items()},
        **{f"{name}.bias": shape[:1] for name, shape in matrices.items()},
        **{f"{name}.{part}": (8,) for name in norms for part in ("weight", "bias")},
        "cls.predictions.bias": (5,),
    }


def test_an_encoder_is_read_only_as_the_decoder_that_it_says_it_is() -> None:
    found = ImportedFamily(BERT, bert_shapes()).read_config(BERT)
    assert found.head_transform == HeadTransformConfig("gelu", bias=True)
    assert found.norm_places == "sums" and found.token_types == 2 and found.has_logits_bias
    for other in ({**BERT, "is_decoder": False}, {k: BERT[k] for k in BERT if k != "is_decoder"}):
        with pytest.raises(CheckpointError, match="'is_decoder'"):
            ImportedFamily(other, bert_shapes())


def test_keys_may_lack_a_bias() -> None:
    shapes = bert_shapes()
    del shapes["bert.encoder.layer.0.attention.self.key.bias"]
    family = ImportedFamily(BERT, shapes)
    pieces = decoder_pieces(family.read_config(BERT), family.NAMES)
    names = {one.name.rpartition("self.")[2] for one in pieces["layers.0.attention.qkv.bias"]}
    assert names == {"query.bias", "value.bias"}
    assert pieces["logits_bias"][0].name == "cls.predictions.bias"
