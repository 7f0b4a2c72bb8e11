"""Random adapters in the files of PEFT, and checkpoints with them merged by PEFT's definition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from jengine.weights.safetensors_file import read_header
from tests.weights.quantized_models import write_tensors

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
# What adapters change in models with recurrent layers; some of these matrices are several of ours.
RECURRENT: dict[str, tuple[str, ...]] = {
    "lfm2": ("in_proj", "q_proj", "w1", "w2", "w3"),
    "bamba": ("in_proj", "mamba.out_proj", *ATTENTION, *MLP),
    "falcon_h1": ("in_proj", "mamba.out_proj", *ATTENTION, *MLP),
    "qwen3_next": ("in_proj_qkvz", "in_proj_ba", "linear_attn.out_proj", *ATTENTION),
}
PREFIX = "base_model.model."


def write_adapter(
    folder: Path,
    base: Path,
    targets: tuple[str, ...] = (*ATTENTION, *MLP),
    *,
    ranks: dict[str, int] | None = None,
    seed: int = 0,
    **config: Any,
) -> dict[str, np.ndarray]:
    """Write an adapter for the modules whose names end so. Returns what it adds, unscaled, to each
    weight [outputs, inputs]."""
    folder.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {
        "peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": list(targets), **config,
    }  # fmt: skip
    draw = np.random.default_rng(seed)
    tensors, added = {}, {}
    for name, tensor in read_header(base / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if not module.endswith(targets):
            continue
        rank = (ranks or {}).get(module.rpartition(".")[2], settings["r"])
        outputs, inputs = tensor.shape
        down = draw.normal(0, 0.3, (rank, inputs)).astype(np.float32)
        up = draw.normal(0, 0.3, (outputs, rank)).astype(np.float32)
        if module.endswith("embed_tokens"):
            tensors[f"{PREFIX}{module}.lora_embedding_A"] = up.T.copy()  # [rank, tokens]
            tensors[f"{PREFIX}{module}.lora_embedding_B"] = down.T.copy()
        else:
            tensors[f"{PREFIX}{module}.lora_A.weight"] = down
            tensors[f"{PREFIX}{module}.lora_B.weight"] = up
        added[name] = up.astype(np.float64) @ down
    write_tensors(folder / "adapter_model.safetensors", tensors)
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return added


def write_merged(folder: Path, base: Path, added: dict[str, np.ndarray]) -> Path:
    """The base model with these sums."""
    folder.mkdir()
    (folder / "config.json").write_bytes((base / "config.json").read_bytes())
    merged = {}
    for name, tensor in read_header(base / "model.safetensors").items():
        array = np.array(tensor.read())
        merged[name] = (array + added[name]).astype(array.dtype) if name in added else array
    write_tensors(folder / "model.safetensors", merged)
    return folder
