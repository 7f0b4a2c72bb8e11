"""Tiny models with random heads that draft for them, in the layouts in which they are published."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import jengine
from jengine.models.draft_heads.eagle import read_eagle
from jengine.models.draft_heads.eagle3 import Eagle3
from jengine.models.draft_heads.eagle3_file import OFFSETS, PLACES, read_eagle3
from jengine.models.draft_heads.heads import EMBED, HEAD, DraftHeads
from jengine.models.draft_heads.medusa import read_medusa
from jengine.models.draft_heads.mtp import COPIES, layer_prefix, read_mtp
from jengine.models.registry import tensor_names
from jengine.weights.draft_places import DraftPlaces
from jengine.weights.folder import open_checkpoint, read_model_config
from jengine.weights.safetensors_file import write_file
from tests.api.engines import tiny_engine
from tests.api.test_draft_model import DRAFTS, SIZES, drafting
from tests.models.tiny_models import write_tiny_native

LAYER = {
    "num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "initializer_range": 0.3, **SIZES,
}  # fmt: skip
KNOWN = 90  # tokens of the 128 that an EAGLE-3 head knows
OWN: dict[str, dict[str, Any]] = {
    "eagle": {"architectures": ["LlamaForCausalLM"], **LAYER},
    "eagle3": {
        "architectures": ["LlamaForCausalLMEagle3"], **LAYER, "draft_vocab_size": KNOWN,
        "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
    },
    "medusa": {"medusa_num_heads": DRAFTS, "medusa_num_layers": 2, "medusa_fc_bias": True},
}  # fmt: skip
READERS: dict[str, Any] = {"eagle": read_eagle, "eagle3": read_eagle3, "medusa": read_medusa}
METHODS = (*READERS, "mtp")
# Tensors that files may hold or leave to the model.
STORED = {"eagle": (EMBED,), "eagle3": (HEAD,), "medusa": ()}


def write_target(folder: Path, method: str = "eagle") -> Path:
    """A model of random weights; for MTP with a layer after its last one."""
    if method != "mtp":
        return write_tiny_native(folder, "llama", **SIZES)
    return write_mtp_model(folder, "glm4_moe")


def write_mtp_model(folder: Path, family: str, **overrides: Any) -> Path:
    """A model of random weights with an MTP layer, which holds a copy of the embedding."""
    write_tiny_native(folder, family, **SIZES, **overrides)
    file, config = folder / "config.json", read_model_config(folder)
    hf = {**json.loads(file.read_text()), "num_nextn_predict_layers": 1}
    file.write_text(json.dumps(hf))
    prefix = layer_prefix(config, tensor_names(config))
    heads = read_mtp(hf, config, tensor_names(config), (COPIES[1],))
    own = {prefix + name: array for name, array in random_tensors(heads).items()}
    whole = {name: tensor.read() for name, tensor in open_checkpoint(folder).items()}
    copy = {prefix + COPIES[0]: whole["model.embed_tokens.weight"]}
    write_tensors(folder, {**whole, **own, **copy})
    return folder


def random_tensors(heads: DraftHeads) -> dict[str, np.ndarray]:
    """A tensor for each name of the pieces."""
    shapes = {piece.name: piece.shape for found in heads.pieces.values() for piece in found}
    rng = np.random.default_rng(7)
    return {
        name: (len(shape) == 1) + rng.normal(0, 0.3, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_tensors(folder: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """A folder's only file of weights."""
    declared = [(name, array.dtype, array.shape) for name, array in tensors.items()]
    write_file(folder / "model.safetensors", declared, iter(tensors.values()))


def write_heads(folder: Path, method: str, target: Path, **changed: Any) -> Path:
    """Random heads for a model. Those of MTP are in its own folder."""
    if method == "mtp":
        return target
    hf = {**OWN[method], **changed}
    (folder / "config.json").write_text(json.dumps(hf))
    heads = READERS[method](hf, read_model_config(target), STORED[method])
    tensors = random_tensors(heads)
    if tensors.pop(PLACES, None) is not None:
        known = np.sort(np.random.default_rng(1).permutation(SIZES["vocab_size"])[:KNOWN])
        tensors[OFFSETS] = known - np.arange(KNOWN)
    write_tensors(folder, tensors)
    return folder


def read_heads(folder: Path, method: str, target: Path) -> tuple[DraftHeads, dict[str, Any]]:
    """The heads in a folder, and their tensors by the names of the pieces."""
    tensors: dict[str, Any] = dict(open_checkpoint(folder))
    hf, config = json.loads((folder / "config.json").read_text()), read_model_config(target)
    if method == "mtp":
        names = tensor_names(config)
        prefix = layer_prefix(config, names)
        own = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        del own[COPIES[0]]
        return read_mtp(hf, config, names, own), own
    heads = READERS[method](hf, config, tensors)
    if isinstance(heads.model, Eagle3):
        tensors[PLACES] = DraftPlaces(PLACES, tensors.pop(OFFSETS), config.vocab_size)
    return heads, tensors


def heads_engine(target: Path, folder: Path, method: str, **settings: Any) -> jengine.LLM:
    """An engine that drafts with heads."""
    return tiny_engine(target, **drafting(folder, method=method), **settings)
