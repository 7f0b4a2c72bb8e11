"""Whether a class is made for writing or for pooling shows at the end of its name."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors import safe_open

from jengine.models import registry
from jengine.models.reading.pooling import pools_by_name
from jengine.weights.dummy import dummy_model
from jengine.weights.safetensors_io import load_model, save_pretrained


@pytest.mark.parametrize(
    ("architecture", "pools"),
    [
        ("LlamaForCausalLM", False),
        ("GPT2LMHeadModel", False),
        ("Qwen2VLForConditionalGeneration", False),
        ("BaichuanChatModel", False),
        ("GPT2Model", True),
        ("BertModel", True),
        ("Qwen3ForSequenceClassification", True),
        ("BertForMaskedLM", True),
        ("HF_ColBERT", True),
    ],
)
def test_a_class_writes_or_pools(architecture: str, pools: bool) -> None:
    assert pools_by_name(architecture) == pools


@pytest.mark.parametrize(
    ("architecture", "first"),
    [("BertModel", "embeddings."), ("BertForTokenClassification", "bert.embeddings.")],
)
def test_files_of_bare_models_have_no_prefix(tmp_path: Path, architecture: str, first: str) -> None:
    sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
             "num_attention_heads": 2, "max_position_embeddings": 8}  # fmt: skip
    config = registry.model_config({"architectures": [architecture], "model_type": "bert", **sizes})
    save_pretrained(dummy_model(config), tmp_path)
    with safe_open(tmp_path / "model.safetensors", "numpy") as file:
        assert all(name.startswith(first.split("embeddings")[0]) for name in file.keys())  # noqa: SIM118
        assert f"{first}word_embeddings.weight" in file.keys()  # noqa: SIM118
    assert load_model(tmp_path).config.architecture == architecture
