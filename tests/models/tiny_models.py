"""Tiny random models in Hugging Face format, for tests of any room.

`write_tiny` writes with transformers and torch (the test is skipped without them), which makes it
an oracle; `write_tiny_native` writes with jengine alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jengine.bench.fidelity.families import FAMILIES as FAMILIES
from jengine.bench.fidelity.families import tiny_settings as tiny_settings

# Those that slow tests of whole engines run: the layers of others are made of the same parts.
DISTINCT = (
    "llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral", "gemma2", "gemma3", "phi3",
    "olmo2", "gpt2",
)  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 6.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.3,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.1, 1.2, 1.3, 1.4],
    "long_factor": [1.5, 2.5, 3.0, 9.0],
}


def config_class(family: str) -> Any:
    """transformers' class for the family's config.json."""
    import transformers

    return getattr(transformers, FAMILIES[family]).config_class


def write_tiny(
    folder: Path, family: str, *, seed: int = 0, dtype: str = "float32", **overrides: Any
) -> Path:
    """Write a tiny model of random weights, biases and norms with transformers."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.utils import logging

    logging.disable_progress_bar()
    architecture = FAMILIES[family]
    config = config_class(family)(**tiny_settings(family, **overrides))
    torch.manual_seed(seed)
    model = getattr(transformers, architecture)(config)
    with torch.no_grad():
        # transformers starts norms at one and biases at zero, which would hide a mix-up.
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 or name.endswith("norm.weight"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
        for name, parameter in model.named_parameters():
            # Nothing else scales its scores. As sharp as they are with norms of one, float32 itself
            # is not exact to 1e-4: transformers differs as much from itself in float64.
            if family == "gemma4" and name.endswith("q_norm.weight"):
                parameter.mul_(0.25)
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "layer_scalar")):
                buffer.add_(torch.randn_like(buffer) * 0.2)
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
