"""Adapters in the host's memory, by the digest of their content. One per process.

In: folders with PEFT's files, or matrices by module or path. Out: adapters that fit the base model;
what does not fit is an error that names it, and changes nothing.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jengine.config import ModelConfig
from jengine.lora.adapter import Adapter
from jengine.lora.live import read_live_adapter
from jengine.lora.peft_files import CONFIG_FILE, WEIGHTS_FILE, places_of, read_adapter
from jengine.lora.weights import wanted_places


class AdapterStore:
    """Adapters for one base model. `add` and `drop` are counted: several fronts may hold one."""

    def __init__(
        self, config: ModelConfig, max_rank: int, modules: tuple[str, ...] | None = None
    ) -> None:
        self._config = config
        self._max_rank = max_rank
        self._modules = modules
        self._adapters: dict[str, Adapter] = {}
        self._holders: dict[str, int] = {}
        self._lock = threading.Lock()
        self._places = wanted_places(places_of(config), modules)

    def find(self, digest: str) -> Adapter | None:
        """The adapter with this content."""
        return self._adapters.get(digest)

    def add_files(self, folder: str) -> tuple[str, Adapter]:
        """Read the adapter of a folder; its digest."""
        adapter = read_adapter(folder, self._config, max_rank=self._max_rank, places=self._places)
        return self._keep(digest_of_files(Path(folder)), adapter)

    def add_live(
        self, matrices: Mapping[str, np.ndarray], alpha: float | None, *, stabilized: bool = False
    ) -> tuple[str, Adapter]:
        """Take the matrices of a trainer; the digest of what they add."""
        adapter = read_live_adapter(
            matrices, self._places, alpha, max_rank=self._max_rank, stabilized=stabilized
        )
        return self._keep(digest_of_arrays(adapter), adapter)

    def drop(self, digest: str) -> bool:
        """Forget an adapter, unless others hold it as well. False if it is not known."""
        with self._lock:
            if digest not in self._holders:
                return False
            self._holders[digest] -= 1
            if not self._holders[digest]:
                del self._holders[digest], self._adapters[digest]
            return True

    def _keep(self, digest: str, adapter: Adapter) -> tuple[str, Adapter]:
        with self._lock:
            self._adapters[digest] = adapter
            self._holders[digest] = self._holders.get(digest, 0) + 1
        return digest, adapter


def digest_of_files(folder: Path) -> str:
    """The digest of an adapter's files."""
    found = hashlib.sha256(b"files")
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        found.update(hashlib.sha256((folder / name).read_bytes()).digest())
    return found.hexdigest()


def digest_of_arrays(adapter: Adapter) -> str:
    """The digest of an adapter's matrices."""
    found = hashlib.sha256(b"arrays")
    for path, part in sorted(adapter.parts.items()):
        for array in (part.down, part.up):
            name = f"{path} {array.shape}\n".encode()
            found.update(name)
            found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()
