"""Benchmark models: their real sizes, and that they are written as others read them."""

from __future__ import annotations

import math
from pathlib import Path

import jax.numpy as jnp
import pytest

from jengine.bench import models
from jengine.bench.made_up_tokenizer import write_tokenizer
from jengine.bench.serve.vocabulary import vocabulary_of
from jengine.models import registry
from jengine.models.parameter import named_parameters
from jengine.text.tokenizer import load_tokenizer
from jengine.weights.abstract import abstract_model
from jengine.weights.folder import read_model_config
from jengine.weights.safetensors_io import load_model

SIZES = {
    "llama-135m": 134.5,
    "llama-135m-long": 134.5,
    "llama-1b": 1235.8,
    "qwen3-moe-150m": 157.7,
    "gemma2-150m": 155.4,
    "granite4-h-300m-long": 301.0,
    "minilm-22m": 22.6,
    "qwen2-vl-70m": 67.1,
}


@pytest.mark.parametrize("name", models.SHAPES)
def test_sizes(name: str) -> None:
    model = abstract_model(registry.model_config(models.SHAPES[name]))
    count = sum(math.prod(parameter.shape) for _, parameter in named_parameters(model))
    assert count / 1e6 == pytest.approx(SIZES[name], abs=0.1)


def test_a_written_model_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {**models.SHAPES["gemma2-150m"], "vocab_size": 64, "num_hidden_layers": 2}
    monkeypatch.setitem(models.SHAPES, "gemma2-150m", small)
    assert models.main(["gemma2-150m", str(tmp_path)]) == 0
    config = read_model_config(tmp_path)
    assert [layer.mixer.window for layer in config.layers] == [512, None]
    weights = dict(named_parameters(load_model(tmp_path)))
    embedding = weights["embed.weight"].get_value()
    assert embedding.dtype == jnp.bfloat16 and float(jnp.std(embedding)) > 0


def test_the_made_up_tokenizer_has_a_word_for_every_token(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, 5_000)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    text = " baba fizo, é!"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text and len(ids) == 2 + 1 + 3 + 1
    names = [tokenizer.decode([number]) for number in range(259, 5_000)]
    assert len(set(names)) == len(names) and all(name.startswith(" ") for name in names)
    assert vocabulary_of(str(tmp_path), "").exact
