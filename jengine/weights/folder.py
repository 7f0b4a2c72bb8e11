"""A model folder: its JSON files and its shards, all checked.

In: a folder in Hugging Face format. Out: parsed settings and where each tensor is stored. Only
local safetensors are read; nothing in a folder is ever executed or downloaded.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jengine.config import ModelConfig
from jengine.demo import model_path
from jengine.errors import CheckpointError, lfs_advice, nearest_name
from jengine.models import registry
from jengine.models.fields import LARGEST_INTEGER, Fields
from jengine.weights.safetensors_file import StoredTensor, read_header

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
GGUF_ADVICE = (
    "GGUF files are not read: get the model in Hugging Face format (config.json, tokenizer.json,"
    " *.safetensors), as its makers publish it."
)
# Weights in formats that are not read: pickles, which can run code, and others.
OTHER_FORMATS = (".bin", ".pt", ".pth", ".ckpt", ".gguf", ".msgpack", ".h5")
# Limits of the numbers in generation_config.json, as Fields.number takes them.
SAMPLING_NUMBERS: Mapping[str, dict[str, Any]] = {
    "temperature": {},
    "top_p": {"maximum": 1.0, "above_minimum": True},
    "min_p": {"maximum": 1.0},
    "repetition_penalty": {"above_minimum": True},
}
SAMPLING_INTEGERS = {"top_k": -1, "max_new_tokens": 1}
GENERATION_KEYS = ("eos_token_id", *SAMPLING_NUMBERS, *SAMPLING_INTEGERS)


def resolve_model(name: str | Path) -> Path:
    """The folder of a model: a path, or "demo" for the model that ships with jengine."""
    if name == "demo":
        return model_path()
    # An empty path would mean the current folder. os.path.expanduser leaves an unknown ~user alone.
    folder = Path(os.path.expanduser(name))
    if str(name) and folder.is_dir():
        return folder
    problem = "is a file" if folder.is_file() else "is not an existing folder"
    raise CheckpointError(
        f"model: given {str(name)!r}, which {problem}.{_suggestion(str(name), folder)} Only local"
        " folders are read and nothing is downloaded: give the path of a folder with config.json"
        " and *.safetensors, or 'demo'."
    )


def _suggestion(name: str, folder: Path) -> str:
    """What somebody who gave this name may have meant."""
    if folder.suffix == ".gguf":
        return f" {GGUF_ADVICE}"
    if cached := _in_hub_cache(name):
        return f" It is in the Hugging Face cache: give {str(cached)!r}."
    try:
        there = [one.name for one in folder.parent.iterdir() if (one / "config.json").is_file()]
    except (OSError, ValueError):
        there = []
    parent = str(name)[: -len(folder.name)] if folder.name else ""
    known = [parent + one for one in there] + ["demo"] * ("/" not in name)
    if hint := nearest_name(name, known):
        return hint
    if HUB_NAME.fullmatch(name):
        return f" For a model of the Hugging Face Hub: hf download {name} --local-dir FOLDER."
    return ""


def _in_hub_cache(name: str) -> Path | None:
    """Where Hugging Face's download cache holds a model of this name."""
    if not HUB_NAME.fullmatch(name):
        return None
    home = os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    snapshots = hub / f"models--{name.replace('/', '--')}" / "snapshots"
    found = [one for one in snapshots.glob("*") if (one / "config.json").is_file()]
    return max(found, key=lambda one: one.stat().st_mtime, default=None)


def read_model_config(folder: Path) -> ModelConfig:
    """The ModelConfig that config.json describes."""
    file = folder / "config.json"
    if not file.is_file() and any(folder.glob("*.gguf")):
        raise CheckpointError(f"{folder}: holds GGUF files and no config.json. {GGUF_ADVICE}")
    return registry.model_config(read_json(file))


def read_json(file: Path) -> dict[str, object]:
    """Parse a file that holds a JSON object."""
    if not file.is_file():
        raise CheckpointError(f"{file.parent}: there is no {file.name} in this folder.")
    try:
        parsed = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        advice = lfs_advice(file)
        raise CheckpointError(f"{file}: cannot be read as JSON: {error}{advice}") from error
    if not isinstance(parsed, dict):
        raise CheckpointError(f"{file}: expected a JSON object, given {type(parsed).__name__}.")
    return parsed


def read_generation_config(folder: Path) -> dict[str, object]:
    """The folder's generation_config.json, or {} where there is none."""
    file = folder / "generation_config.json"
    return generation_settings(read_json(file), str(file)) if file.exists() else {}


def generation_settings(values: object, where: str) -> dict[str, object]:
    """What a generation config says about sampling; keys that it leaves out or nulls are absent.

    `eos_token_id` is always a tuple. Keys that do not concern sampling are ignored.
    """
    fields = Fields(values, where)
    found: dict[str, object] = {}
    given = {key for key, value in fields.values.items() if value is not None}
    if "eos_token_id" in given:
        found["eos_token_id"] = fields.integers("eos_token_id", None, maximum=LARGEST_INTEGER)
    for key, limits in SAMPLING_NUMBERS.items():
        if key in given:
            found[key] = fields.number(key, **limits)
    for key, minimum in SAMPLING_INTEGERS.items():
        if key in given:
            found[key] = fields.integer(key, minimum=minimum)
    return found


def open_checkpoint(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of the folder's safetensors files, by name."""
    if (folder / SINGLE_FILE).is_file():
        return read_header(folder / SINGLE_FILE)
    if (folder / INDEX_FILE).is_file():
        return _read_shards(folder, read_json(folder / INDEX_FILE))
    raise CheckpointError(f"{folder}: {_why_no_weights(folder)}")


def _why_no_weights(folder: Path) -> str:
    wanted = f"expected {SINGLE_FILE}, or {INDEX_FILE} and its shards"
    if not folder.is_dir():
        return f"is not a folder; {wanted}."
    names = sorted(file.name for file in folder.iterdir())
    shards = [name for name in names if name.endswith(".safetensors")]
    if shards:
        return f"{wanted}, found only {', '.join(shards[:10])}."
    others = [name for name in names if name.endswith(OTHER_FORMATS)]
    if others and all(name.endswith(".gguf") for name in others):
        return f"{wanted}, found only {', '.join(others[:10])}. {GGUF_ADVICE}"
    if others:
        return (
            f"{wanted}, found only {', '.join(others[:10])}. Pickled weights can run code when they"
            " are opened and other formats are not read here. Convert them to safetensors: load the"
            " model with transformers where you trust it and call save_pretrained()."
        )
    return f"{wanted}, found no weights."


def _read_shards(folder: Path, index: Mapping[str, object]) -> dict[str, StoredTensor]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{folder / INDEX_FILE}: 'weight_map' is missing or not an object.")
    shards = {_shard_name(folder, name, shard) for name, shard in weight_map.items()}
    tensors: dict[str, StoredTensor] = {}
    for shard in sorted(shards):
        for name, tensor in _read_shard(folder, shard).items():
            if name in tensors:
                raise CheckpointError(f"{folder}: {name!r} is in {tensors[name].file} and {shard}.")
            if weight_map.get(name) != shard:
                raise CheckpointError(
                    f"{folder / INDEX_FILE}: does not say that {name!r} is in {shard}."
                )
            tensors[name] = tensor
    absent = [name for name in weight_map if name not in tensors]
    if absent:
        raise CheckpointError(
            f"{folder / weight_map[absent[0]]}: holds no {absent[0]!r}, as the index says."
        )
    return tensors


def _shard_name(folder: Path, name: str, shard: object) -> str:
    """Check that a shard's name is a plain file name, so that it cannot lead out of the folder.

    The file itself may be a symbolic link, as in download caches.
    """
    if (
        not isinstance(shard, str)
        or Path(shard).name != shard
        or "\\" in shard
        or "\0" in shard
        or not shard.endswith(".safetensors")
    ):
        raise CheckpointError(
            f"{folder / INDEX_FILE}: {name!r} is said to be in {str(shard)[:120]!r}, expected the"
            " name of a .safetensors file in the same folder."
        )
    return shard


def _read_shard(folder: Path, shard: str) -> dict[str, StoredTensor]:
    if not (folder / shard).is_file():
        raise CheckpointError(f"{folder}: shard {shard!r} is missing; the index names it.")
    return read_header(folder / shard)
