"""The connector of examples/nixl_connector.py over a store that is a folder. Importing it needs
`examples` on the path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import nixl_connector


class FileObjects:
    """What the example says that a store needs."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._folder = Path(parameters["folder"])

    def has(self, name: str) -> bool:
        """Whether there is such an object."""
        return self._path(name).is_file()

    def get(self, name: str, size: int) -> bytes | None:
        """The first bytes of an object."""
        try:
            with self._path(name).open("rb") as file:
                return file.read(size)
        except OSError:
            return None

    def put(self, name: str, data: bytes) -> bool:
        """Write an object, which is seen once it is whole."""
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(data)
        partial.replace(path)
        return True

    def _path(self, name: str) -> Path:
        return self._folder / name


nixl_connector.ObjectStore = FileObjects  # type: ignore[misc,assignment]
FileConnector = nixl_connector.NixlObjects
