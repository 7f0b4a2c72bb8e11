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
# What transformers' parameters of experts are in files with a tensor per expert.
APART = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


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


def write_stacked(
    folder: Path, base: Path, parameters: tuple[str, ...], *, rank: int = 2, seed: int = 0
) -> dict[str, np.ndarray]:
    """Write an adapter of PEFT's target_parameters for all experts, whose names are those of
    transformers. Returns what it adds, unscaled, to each tensor of the base model."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(seed)
    shapes = {
        name: tensor.shape for name, tensor in read_header(base / "model.safetensors").items()
    }
    tensors: dict[str, np.ndarray] = {}
    added: dict[str, np.ndarray] = {}
    for prefix in sorted({name.split(".experts.")[0] for name in shapes if ".experts." in name}):
        for parameter in parameters:
            own = parts_of(shapes, f"{prefix}.experts.", parameter)
            inputs, sizes = own[0][0][1][1], [outputs for _, (outputs, _) in own[0]]
            down = draw.normal(0, 0.3, (len(own), rank, inputs)).astype(np.float32)
            up = draw.normal(0, 0.3, (sum(sizes), rank, len(own))).astype(np.float32)
            inner = ".base_layer" if len(parameters) == 2 and parameter == "gate_up_proj" else ""
            module = f"{PREFIX}{prefix}.experts{inner}"
            tensors[f"{module}.lora_A.weight"] = down.reshape(-1, inputs)
            tensors[f"{module}.lora_B.weight"] = up.reshape(sum(sizes), -1)
            for expert, names in enumerate(own):
                parts = np.split(up[..., expert], np.cumsum(sizes)[:-1])
                for (name, _), part in zip(names, parts, strict=True):
                    product = part.astype(np.float64) @ down[expert]
                    if len(shapes[name]) == 3:  # [experts, inputs, outputs]
                        added.setdefault(name, np.zeros(shapes[name]))[expert] = product.T
                    else:
                        added[name] = product
    write_tensors(folder / "adapter_model.safetensors", tensors)
    settings = {
        "peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": [],
        "target_parameters": [f"experts.{one}" for one in parameters],
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return added


def parts_of(
    shapes: dict[str, tuple[int, ...]], experts: str, parameter: str
) -> list[list[tuple[str, tuple[int, int]]]]:
    """By expert: the tensors that transformers' parameter consists of, with outputs and inputs."""
    if (whole := experts + parameter) in shapes:
        count, inputs, outputs = shapes[whole]
        return [[(whole, (outputs, inputs))]] * count
    leaves = APART[parameter]
    count = len({name.split(".")[-3] for name in shapes if name.startswith(experts)})
    names = [[f"{experts}{expert}.{leaf}.weight" for leaf in leaves] for expert in range(count)]
    return [[(name, (shapes[name][0], shapes[name][1])) for name in own] for own in names]


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
