"""Files that only this user can read, written atomically."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def private_file(path: Path) -> Any:
    """A new file that only this user can read."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def write_private(path: Path, data: bytes) -> None:
    """Write a file atomically: it is complete or absent."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with private_file(partial) as stream:
            stream.write(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
