"""Tokenizers are those of AutoTokenizer, without torch, which transformers finds as before."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from jengine.demo import model_path
from jengine.text.tokenizer import load_tokenizer

FOLDER = model_path()
USES_TORCH_LATER = f"""
import sys
from jengine.text.tokenizer import load_tokenizer
tokenizer = load_tokenizer({str(FOLDER)!r})
tokenizer.hf.apply_chat_template([dict(role="user", content="x")], tokenize=False)
assert tokenizer.encode("hello") and "torch" not in sys.modules

from transformers import AutoModelForCausalLM, modeling_rope_utils
from transformers.utils import is_torch_available
assert is_torch_available() and "torch" not in sys.modules
model = AutoModelForCausalLM.from_pretrained({str(FOLDER)!r})
found = modeling_rope_utils.torch.arange
import torch
assert found is torch.arange and modeling_rope_utils.torch is torch
assert model(torch.tensor([[5, 6]])).logits.shape[:2] == (1, 2)
"""


@pytest.mark.slow
def test_torch_is_imported_when_it_is_used() -> None:
    pytest.importorskip("torch")
    subprocess.run([sys.executable, "-c", USES_TORCH_LATER], check=True)


@pytest.mark.parametrize(
    ("config", "tokenizer_config"),
    [
        ({}, {}),
        ({"model_type": "llama"}, {"tokenizer_class": "LlamaTokenizerFast"}),
        ({"model_type": "llama"}, {"tokenizer_class": "PreTrainedTokenizerFast"}),
        ({"model_type": "llama"}, {"tokenizer_class": None}),
        ({"model_type": "qwen2"}, {"tokenizer_class": "Qwen2Tokenizer"}),
        ({"model_type": "deepseek_v3"}, {"tokenizer_class": "LlamaTokenizer"}),
        ({"model_type": "of-tomorrow"}, {"tokenizer_class": "GPT2Tokenizer"}),
        ({"model_type": "gpt2"}, {"tokenizer_class": "OfTomorrowTokenizer"}),
    ],
)
def test_the_class_is_that_of_auto_tokenizer(
    config: dict[str, Any], tokenizer_config: dict[str, Any], tmp_path: Path
) -> None:
    for name, own in (("config.json", config), ("tokenizer_config.json", tokenizer_config)):
        given = json.loads((FOLDER / name).read_text(encoding="utf-8"))
        (tmp_path / name).write_text(json.dumps({**given, **own}), encoding="utf-8")
    shutil.copy(FOLDER / "tokenizer.json", tmp_path)
    expected = AutoTokenizer.from_pretrained(tmp_path)
    found = load_tokenizer(tmp_path)
    assert type(found.hf) is type(expected)
    assert found.hf.init_kwargs.keys() == expected.init_kwargs.keys()
    assert found.encode("Hello, wörld! 12") == expected("Hello, wörld! 12")["input_ids"]
