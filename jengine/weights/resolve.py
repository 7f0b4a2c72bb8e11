"""Finds a model's folder by what the user calls it. No jax.

In: a path, or "demo". Out: the folder, or an error with what was probably meant. Nothing is
downloaded.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from jengine.demo import model_path
from jengine.errors import CheckpointError, nearest_name

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
GGUF_ADVICE = (
    "GGUF files are not read: get the model in Hugging Face format (config.json, tokenizer.json,"
    " *.safetensors), as its makers publish it."
)


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
    """The model that was probably meant by this name, as the end of a message."""
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
