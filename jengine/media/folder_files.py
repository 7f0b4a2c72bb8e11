"""Reads files below one folder by untrusted names, without following links.

In: a folder and a path. Out: bytes, or a RequestError. All checks use descriptors, so files cannot
be swapped in between.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from jengine.errors import RequestError

# Whoever opens a FIFO for reading would wait for its writer.
HOW = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def folder_file(folder: Path, path: str, most: int, what: str) -> bytes:
    """Contents of a regular file below the folder. Raises RequestError."""
    parts = parts_below(folder, path, what)
    try:
        found = opened_below(folder, parts)
    except OSError as error:
        raise RequestError(
            f"{what}: cannot read {Path(*parts)}: {error.strerror}; expected a file that is no "
            "link, nor behind one."
        ) from None
    about = os.fstat(found)
    if not stat.S_ISREG(about.st_mode):
        os.close(found)
        raise RequestError(f"{what}: {Path(*parts)} is no regular file.")
    with open(found, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise RequestError(
            f"{what}: {Path(*parts)} has {about.st_size} bytes; expected at most {most}."
        )
    return content


def parts_below(folder: Path, path: str, what: str) -> tuple[str, ...]:
    """Path components below the folder. Raises RequestError for paths outside."""
    plain = Path(os.path.normpath(path))
    for root in (folder.absolute(), folder.resolve()):
        if plain.is_relative_to(root) and plain != root:
            return plain.relative_to(root).parts
    raise RequestError(f"{what}: the file path is not a subpath of `--allowed-local-media-path`.")


def opened_below(folder: Path, parts: tuple[str, ...]) -> int:
    """Open a file with O_NOFOLLOW at every component; returns its descriptor."""
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for place, name in enumerate(parts):
        is_last = place == len(parts) - 1
        try:
            below = os.open(name, HOW if is_last else HOW | os.O_DIRECTORY, dir_fd=at)
        finally:
            os.close(at)
        at = below
    return at
