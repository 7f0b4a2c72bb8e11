"""Finds a model's folder, or its GGUF file, by what the user calls it. No jax.

In: a path, or the name of what ships with jengine. Out: the folder, or an error with what was
probably meant. Nothing is downloaded.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from jengine.demo import SHIPPED
from jengine.errors import CheckpointError, nearest_name

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
# The beginning of an address in an object store, or of any other URL.
REMOTE = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
GGUF = ".gguf"
GGUF_ADVICE = "Give the .gguf file itself as the model."


def resolve_model(name: str | Path) -> Path:
    """The folder of a model: a path, "demo" for the model that ships with jengine, or "demo-eagle"
    for the head that guesses for it. A GGUF file stands for a folder."""
    if name in SHIPPED:
        return SHIPPED[str(name)]
    # An empty path would mean the current folder. os.path.expanduser leaves an unknown ~user alone.
    folder = Path(os.path.expanduser(name))
    if str(name) and (folder.is_dir() or is_gguf(folder)):
        return folder
    if scheme := REMOTE.match(str(name)):
        raise CheckpointError(
            f"model: given {str(name)!r}. Objects of {scheme[1]!r} stores are not read: copy them "
            "to a local folder, or take weights from an engine that runs with load_format='peer'."
        )
    problem = "is a file" if folder.is_file() else "is not an existing folder"
    raise CheckpointError(
        f"model: given {str(name)!r}, which {problem}.{_suggestion(str(name), folder)} Only local"
        " folders are read and nothing is downloaded: give the path of a folder with config.json"
        " and *.safetensors, of a .gguf file, or 'demo'."
    )


def is_gguf(path: Path) -> bool:
    """Whether this is the path of a GGUF file."""
    return path.suffix == GGUF and path.is_file()


def _suggestion(name: str, folder: Path) -> str:
    """The model that was probably meant by this name, as the end of a message."""
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
