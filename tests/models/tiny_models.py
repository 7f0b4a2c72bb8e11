"""Tiny random models in Hugging Face format, for tests of any room.

`write_tiny` writes with transformers and torch (the test is skipped without them), which makes it
an oracle; `write_tiny_native` writes with jengine alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

FAMILIES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
OWN_SIZES: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 16},
    "qwen3": {"head_dim": 16},
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def tiny_settings(family: str, **overrides: Any) -> dict[str, Any]:
    """The config.json keys of a tiny model."""
    return {**SIZES, **OWN_SIZES.get(family, {}), **overrides}


def write_tiny(
    folder: Path, family: str, *, seed: int = 0, dtype: str = "float32", **overrides: Any
) -> Path:
    """Write a tiny model of random weights, biases and norms with transformers."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.utils import logging

    logging.disable_progress_bar()
    architecture = FAMILIES[family]
    config_class = getattr(transformers, architecture.replace("ForCausalLM", "Config"))
    config = config_class(**tiny_settings(family, **overrides))
    torch.manual_seed(seed)
    model = getattr(transformers, architecture)(config)
    with torch.no_grad():
        # transformers starts norms at one and biases at zero, which would hide a mix-up.
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    return Path(folder)


def write_tiny_native(
    folder: Path, family: str, *, seed: int = 0, dtype: str = "float32", **overrides: Any
) -> Path:
    """Write a tiny model of random weights with jengine's own writer; needs no torch."""
    from jengine.models.registry import model_config
    from jengine.weights.dummy import dummy_model
    from jengine.weights.safetensors_io import save_pretrained

    settings = {"architectures": [FAMILIES[family]], "dtype": dtype}
    config = model_config({**tiny_settings(family, **overrides), **settings})
    save_pretrained(dummy_model(config, seed=seed), folder)
    return Path(folder)
