"""Rotations that GGUF files scale, by keys and by tensors of factors, against config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jengine.errors import CheckpointError
from jengine.weights.folder import read_model_config
from tests.weights.gguf.architectures import ORIGINAL, write_architecture

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
# Family, what config.json says, and the keys of the file beyond those of every yarn.
SCALED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "linear": (
        "qwen3", {"rope_type": "linear", "factor": 8.0},
        {"qwen3.rope.scaling.type": "linear", "qwen3.rope.scaling.factor": 8.0},
    ),
    "yarn": ("qwen3", YARN, {}),
    "yarn, all of it": (
        "qwen3", {**YARN, "beta_fast": 24.0, "beta_slow": 2.0, "attention_factor": 1.25},
        {
            "qwen3.rope.scaling.yarn_beta_fast": 24.0, "qwen3.rope.scaling.yarn_beta_slow": 2.0,
            "qwen3.rope.scaling.yarn_attn_factor": 1.25,
        },
    ),
    "yarn of deepseek": (
        "deepseek_v2", {**YARN, "mscale": 0.7, "mscale_all_dim": 0.7},
        {"deepseek2.rope.scaling.yarn_log_multiplier": 0.07},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCALED)
def test_keys(name: str, tmp_path: Path) -> None:
    family, rope, keys = SCALED[name]
    parameters = {"rope_theta": 10000.0, **rope}
    files = write_architecture(tmp_path, family, keys, rope_parameters=parameters)
    own, other = read_model_config(files.gguf), read_model_config(files.folder)
    assert own.layers == other.layers
    assert own.layers != read_model_config(write_architecture(tmp_path / "x", family).gguf).layers


def long_factors(dtype: type = np.float32) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Tensors of a file, and what config.json says."""
    pairs = np.arange(4)
    long, short = (1.5 + pairs).astype(dtype), (1 + pairs / 8).astype(dtype)
    rope = {
        "rope_type": "longrope", "rope_theta": 10000.0, "long_factor": long.tolist(),
        "short_factor": short.tolist(), "original_max_position_embeddings": 64,
    }  # fmt: skip
    return {"rope_factors_long.weight": long, "rope_factors_short.weight": short}, rope


@pytest.mark.parametrize("attention", [None, 1.5])
def test_longrope(attention: float | None, tmp_path: Path) -> None:
    tensors, rope = long_factors()
    keys: dict[str, Any] = {f"phi3.{ORIGINAL}": 64}
    if attention is not None:
        rope["attention_factor"] = keys["phi3.rope.scaling.attn_factor"] = attention
    files = write_architecture(
        tmp_path, "phi3", keys, tensors, rope_parameters=rope, head_dim=8,
        original_max_position_embeddings=64,
    )  # fmt: skip
    own, other = read_model_config(files.gguf), read_model_config(files.folder)
    assert own.layers == other.layers


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    tensors, rope = long_factors()
    bad = {"rope_factors_long.weight": tensors["rope_factors_long.weight"] * np.nan}
    settings = {"rope_parameters": rope, "head_dim": 8, "original_max_position_embeddings": 64}
    files = write_architecture(tmp_path / "a", "phi3", None, {**tensors, **bad}, **settings)
    with pytest.raises(CheckpointError, match=r"'rope_factors_long.weight' holds NaN"):
        read_model_config(files.gguf)
    other = {"phi3.rope.scaling.type": "yarn"}
    files = write_architecture(tmp_path / "b", "phi3", other, tensors, **settings)
    with pytest.raises(CheckpointError, match=r"scaling.type is 'yarn', expected longrope"):
        read_model_config(files.gguf)
    unknown = {"qwen3.rope.scaling.type": "su", "qwen3.rope.scaling.factor": 2.0}
    files = write_architecture(tmp_path / "c", "qwen3", unknown)
    with pytest.raises(CheckpointError, match="'su', expected none, linear or yarn"):
        read_model_config(files.gguf)
