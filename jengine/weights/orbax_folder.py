"""Finds the Orbax checkpoint in a folder, without importing Orbax.

In: a folder. Out: its checkpoint, the latest of several steps, and the names of its trees. Must not
know arrays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from jengine.errors import CheckpointError

# Subfolder of arrays in folders saved by jengine.
ARRAYS_FOLDER = "orbax"
CHECKPOINT_FILE = "_CHECKPOINT_METADATA"
TREE_FILE = "_METADATA"
# Part of the name of an unfinished Orbax checkpoint.
UNFINISHED = ".orbax-checkpoint-tmp"


def is_orbax(folder: Path | str) -> bool:
    return any(_checkpoints(Path(folder)))


def find_checkpoint(folder: Path | str) -> Path:
    """Path of the folder's checkpoint: itself, below it, or the latest step. Raises
    CheckpointError."""
    found = next(_checkpoints(Path(folder)), [])
    if not found:
        raise CheckpointError(
            f"{folder}: there is no Orbax checkpoint in this folder. Expected {ARRAYS_FOLDER}/ as "
            "LLM.save writes it, or a checkpoint or numbered steps of a training loop, in this "
            "folder or one below it."
        )
    if len(found) == 1:
        return found[0]
    steps = [_step(path) for path in found]
    numbers = {number for _, number in steps}
    if None in numbers or len({series for series, _ in steps}) > 1 or len(numbers) < len(found):
        names = ", ".join(str(path) for path in found[:10])
        raise CheckpointError(
            f"{folder}: holds {len(found)} Orbax checkpoints, which are not the steps of one run:"
            f" {names}. Leave one of them in this folder."
        )
    return max(found, key=lambda path: _step(path)[1] or 0)


def stored_trees(checkpoint: Path) -> list[str | None]:
    """Names of the array trees in a checkpoint; None for an unnamed tree."""
    if (checkpoint / TREE_FILE).is_file():
        return [None]
    return [path.name for path in _folders(checkpoint) if (path / TREE_FILE).is_file()]


def _checkpoints(folder: Path) -> Iterator[list[Path]]:
    """Checkpoints at each depth that has any, nearest first."""
    level: Sequence[Path] = [folder]
    for _ in range(3):
        found = [path for path in level if _is_checkpoint(path)]
        if found:
            # Resolved, so that a link named 'latest' is not counted as a second checkpoint.
            yield sorted({path.resolve() for path in found})
        level = [below for path in level if path not in found for below in _folders(path)]


def _is_checkpoint(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (CHECKPOINT_FILE, TREE_FILE))


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(
            path
            for path in folder.iterdir()
            if path.is_dir() and UNFINISHED not in path.name and not path.name.startswith(".")
        )
    except OSError:
        return []  # not a folder, or not readable


def _step(path: Path) -> tuple[tuple[Path, str], int | None]:
    """Series and step number of a path: run/step_020 is step 20 of (run, 'step_')."""
    match = re.fullmatch(r"(|.*\D)(\d{1,18})", path.name)
    if match is None:
        return (path.parent, path.name), None
    return (path.parent, match[1]), int(match[2])
