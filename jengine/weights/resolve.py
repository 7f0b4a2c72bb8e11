"""Resolves a model name to a folder or GGUF file. No jax.

In: a path, the name of a bundled model, or a Hugging Face repository, which is downloaded. Out: the
folder, or an error with a suggestion.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from jengine.demo import SHIPPED
from jengine.errors import CheckpointError, nearest_name
from jengine.hub.names import GGUF, HubName, hub_name
from jengine.hub.options import HubOptions
from jengine.hub.snapshot import local_snapshot

# Prefix of an object store's address or any other URL.
REMOTE = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
# Files that make a folder a model or tokenizer, even beside GGUF files.
OWN_FILES = ("config.json", "tokenizer.json")
# GGUF files that are no model: parts after the first, and multimodal projectors.
NO_MODEL = re.compile(r"(?<!-00001)-of-\d{5}\.gguf$|^mmproj")
GGUF_ADVICE = "Give the .gguf file itself as the model."


def resolve_model(name: str | Path, options: HubOptions | None = None) -> Path:
    """Folder of a model: a path, "demo" or "demo-eagle" (bundled), or a repository `org/name`; or
    the path of a GGUF file. Raises CheckpointError."""
    if name in SHIPPED:
        return SHIPPED[str(name)]
    # An empty path would mean the current folder. os.path.expanduser leaves an unknown ~user alone.
    folder = Path(os.path.expanduser(name))
    if str(name) and (folder.is_dir() or is_gguf(folder)):
        return gguf_in(folder) or folder
    if scheme := REMOTE.match(str(name)):
        raise CheckpointError(
            f"model: given {str(name)!r}. Objects of {scheme[1]!r} stores are not read: copy them "
            "to a local folder, or take weights from an engine that runs with load_format='peer'."
        )
    if (repository := hub_name(str(name))) is not None and not folder.is_file():
        return _downloaded(repository, folder, options or HubOptions())
    problem = "is a file" if folder.is_file() else "is not an existing folder"
    raise CheckpointError(
        f"model: given {str(name)!r}, which {problem}.{_suggestion(str(name), folder)} Expected a"
        " folder with config.json and *.safetensors, a .gguf file, 'demo', or org/name of the"
        " Hugging Face Hub."
    )


def _downloaded(name: HubName, folder: Path, options: HubOptions) -> Path:
    """The repository's snapshot; errors also suggest a local path."""
    try:
        return local_snapshot(name, options)
    except CheckpointError as error:
        if hint := _suggestion(str(folder), folder):
            raise CheckpointError(f"{error} Or is a local folder meant?{hint}") from error
        raise


def in_hub(name: object) -> bool:
    """Whether this names a repository and no existing path."""
    return isinstance(name, str) and hub_name(name) is not None and not Path(name).exists()


def gguf_in(folder: Path) -> Path | None:
    """The single model in a folder of GGUF files (the first file of several), or None."""
    if not folder.is_dir() or any((folder / name).is_file() for name in OWN_FILES):
        return None
    files = sorted(file for file in folder.glob(f"*{GGUF}") if not NO_MODEL.search(file.name))
    if len(files) > 1:
        sizes = ", ".join(f"{file.name} ({file.stat().st_size / 1e9:.2f} GB)" for file in files)
        raise CheckpointError(f"{folder}: holds {len(files)} GGUF models. Give one: {sizes}.")
    return files[0] if files else None


def is_gguf(path: Path) -> bool:
    return path.suffix == GGUF and path.is_file()


def _suggestion(name: str, folder: Path) -> str:
    """Suggestion of a similar model name, as the end of a message."""
    try:
        there = [one.name for one in folder.parent.iterdir() if (one / "config.json").is_file()]
    except (OSError, ValueError):
        there = []
    parent = str(name)[: -len(folder.name)] if folder.name else ""
    return nearest_name(name, [parent + one for one in there] + ["demo"] * ("/" not in name))
