"""Adapters in host memory by content digest; one store per process.

In: PEFT folders, or matrices by name. Out: adapters that fit the base model; a mismatch raises an
error that names it and changes nothing.
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
    """Reference-counted adapters of one base model: several fronts may add and drop the same
    one."""

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
        return self._adapters.get(digest)

    def add_files(self, folder: str) -> tuple[str, Adapter]:
        """Read and keep a folder's adapter. Returns (digest, adapter)."""
        adapter = read_adapter(folder, self._config, max_rank=self._max_rank, places=self._places)
        return self._keep(digest_of_files(Path(folder)), adapter)

    def add_live(
        self, matrices: Mapping[str, np.ndarray], alpha: float | None, *, stabilized: bool = False
    ) -> tuple[str, Adapter]:
        """Keep a trainer's in-memory adapter. Returns (digest, adapter)."""
        adapter = read_live_adapter(
            matrices, self._places, alpha, max_rank=self._max_rank, stabilized=stabilized
        )
        return self._keep(digest_of_arrays(adapter), adapter)

    def drop(self, digest: str) -> bool:
        """Release one reference, and the adapter with the last. Returns False for an unknown
        digest."""
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
    """SHA-256 over an adapter's config and weights files."""
    found = hashlib.sha256(b"files")
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        found.update(hashlib.sha256((folder / name).read_bytes()).digest())
    return found.hexdigest()


def digest_of_arrays(adapter: Adapter) -> str:
    """SHA-256 over an adapter's matrices, shapes and paths."""
    found = hashlib.sha256(b"arrays")
    for path, part in sorted(adapter.parts.items()):
        for array in (part.down, part.up):
            name = f"{path} {array.shape}\n".encode()
            found.update(name)
            found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()
