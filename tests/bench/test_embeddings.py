"""Embeddings per second: every engine embeds the same prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers as hf

from jengine.bench import embeddings
from jengine.bench.models import SHAPES
from jengine.errors import ConfigError
from jengine.models import registry
from tests.api.test_encoders import BASE


def test_the_models_config_reads_back() -> None:
    config = registry.model_config(SHAPES["minilm-22m"])
    assert registry.model_config(registry.write_config(config)) == config


def test_unknown_peers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="transformers, vllm"):
        embeddings.opened_peer("torchlite", "m", tmp_path, "float32")


@pytest.mark.slow
def test_in_turns_with_transformers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    hf.BertModel(hf.BertConfig(**BASE)).save_pretrained(tmp_path)
    words = [str(tmp_path), "--against", "transformers", "--prompts", "20", "--rounds", "1"]
    assert embeddings.main(words) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(result["embeddings_per_second"]) == {"jengine", "transformers"}
    assert result["prompts"] == 20 and result["times"]["jengine"] == 1
