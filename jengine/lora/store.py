"""Adapters in host memory by content digest; one store per process.

In: PEFT folders, or matrices by name. Out: adapters that fit the base model. A mismatch raises
CheckpointError and changes nothing.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jengine.config import ModelConfig
from jengine.errors import CheckpointError
from jengine.lora.adapter import Adapter, LowRank, in_group, without_group
from jengine.lora.peft_files import (
    CONFIG_FILE,
    DOWN,
    PREFIX,
    TABLE_DOWN,
    TABLE_UP,
    UP,
    WEIGHTS_FILE,
    Matrices,
    Place,
    Places,
    by_path,
    joined_parts,
    owners_of,
    places_of,
    read_adapter,
)
from jengine.lora.weights import wanted_places


class AdapterStore:
    """Reference-counted adapters of one base model: several front processes may add and drop the
    same adapter."""

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


OWN_DOWN, OWN_UP = ".a", ".b"
SOURCE = "the adapter's matrices"


def read_live_adapter(
    matrices: Mapping[str, np.ndarray],
    places: Places,
    alpha: float | None,
    *,
    max_rank: int,
    stabilized: bool = False,
) -> Adapter:
    """Build an adapter from in-memory matrices. `alpha` None: B is already scaled. Raises
    CheckpointError."""
    paths = by_path(places)
    matrices = by_matrix(matrices, paths)
    found: dict[str, Matrices] = {}
    parts: dict[str, LowRank] = {}
    for name in matrices:
        short = name.removeprefix(PREFIX)
        module = short.removesuffix(TABLE_DOWN).removesuffix(DOWN)
        if module != short and module in places and short == module + places[module][0].names[0]:
            place = places[module][0]
            found[module] = _module(matrices, name, place, alpha, max_rank, stabilized)
        elif name.endswith(OWN_DOWN) and name.removesuffix(OWN_DOWN) in paths:
            path = name.removesuffix(OWN_DOWN)
            parts[path] = _own(matrices, path, paths[path], alpha, max_rank, stabilized)
        elif not (short.endswith((UP, TABLE_UP, OWN_UP)) and _partner(name) in matrices):
            raise CheckpointError(
                f"{SOURCE}: {name!r} fits nothing that an adapter can change here; expected pairs "
                f"MODULE{DOWN} and MODULE{UP}, or PATH{OWN_DOWN} and PATH{OWN_UP}."
            )
    both = sorted({place.path for module in found for place in places[module]} & {*parts})
    if both:
        raise CheckpointError(f"{SOURCE}: {both[0]!r} is given by both kinds of names.")
    parts.update(joined_parts(places, found))
    ranks = [len(one.down) for one in found.values()]
    return Adapter(max([*ranks, *(part.rank for part in parts.values())], default=0), parts)


def by_matrix(
    matrices: Mapping[str, np.ndarray], paths: Mapping[str, object]
) -> dict[str, np.ndarray]:
    """Split arrays [groups, ...] of grouped weights, such as experts, by matrix."""
    found: dict[str, np.ndarray] = {}
    for name, array in matrices.items():
        path, dot, own = name.rpartition(".")
        if path in paths or in_group(path, 0) not in paths:
            found[name] = array
            continue
        count = sum(without_group(one)[0] == path for one in paths)
        if np.ndim(array) == 0 or len(array) != count:
            raise CheckpointError(
                f"{SOURCE}: {name!r} is {np.shape(array)}, expected {count} matrices."
            )
        found |= {f"{in_group(path, group)}{dot}{own}": one for group, one in enumerate(array)}
    return found


def _partner(name: str) -> str:
    """Name of the A matrix that goes with a B matrix."""
    for down, up in ((DOWN, UP), (TABLE_DOWN, TABLE_UP)):
        if name.endswith(up):
            return name.removesuffix(up) + down
    return name.removesuffix(OWN_UP) + OWN_DOWN


def _module(
    matrices: Mapping[str, np.ndarray],
    name: str,
    place: Place,
    alpha: float | None,
    max_rank: int,
    stabilized: bool,
) -> Matrices:
    inputs, outputs = place.matrix
    rank = _rank(matrices, name, 0, max_rank)
    first, second = place.names
    down = _array(matrices, name, (rank, inputs))
    up = _array(matrices, name.removesuffix(first) + second, (outputs, rank))
    return Matrices(down, up * scale(alpha, rank, stabilized))


def _own(
    matrices: Mapping[str, np.ndarray],
    path: str,
    modules: Sequence[Place],
    alpha: float | None,
    max_rank: int,
    stabilized: bool,
) -> LowRank:
    """Update of a weight named by jengine's path, whose inputs and outputs may have several
    dimensions. The pair is repeated for each fused module, with B restricted to its outputs."""
    place, owners = modules[0], owners_of(modules)
    rank = _rank(matrices, path + OWN_DOWN, -1, max_rank)
    inputs, outputs = math.prod(place.inputs), math.prod(place.outputs)
    down = _array(matrices, path + OWN_DOWN, (*place.inputs, rank), (inputs, rank))
    up = _array(matrices, path + OWN_UP, (rank, *place.outputs), (rank, outputs))
    up = up * scale(alpha, rank, stabilized)
    numbers = range(len(modules))
    parts = [np.where(owners == number, up, np.float32(0.0)) for number in numbers]
    down = np.concatenate([down.reshape(-1, rank)] * len(modules), axis=1)
    return LowRank(down, np.concatenate(parts), (rank,) * len(modules))


def scale(alpha: float | None, rank: int, stabilized: bool) -> np.float32:
    """Scale of the update: alpha / rank, or alpha / sqrt(rank) for rsLoRA; 1 without alpha."""
    if alpha is None:
        return np.float32(1.0)
    return np.float32(alpha / (math.sqrt(rank) if stabilized else rank))


def _rank(matrices: Mapping[str, np.ndarray], name: str, axis: int, max_rank: int) -> int:
    shape = np.shape(matrices[name])
    rank = shape[axis] if shape else 0
    if not 1 <= rank <= max_rank:
        raise CheckpointError(
            f"{SOURCE}: {name!r} has rank {rank}, expected 1 to max_lora_rank={max_rank}."
        )
    return rank


def _array(
    matrices: Mapping[str, np.ndarray],
    name: str,
    shape: tuple[int, ...],
    flat: tuple[int, ...] | None = None,
) -> np.ndarray:
    """Return a matrix in `shape`; it may be given flattened to `flat`. Raises CheckpointError."""
    if name not in matrices:
        raise CheckpointError(f"{SOURCE}: {name!r} is missing.")
    array = np.asarray(matrices[name], np.float32)
    if array.shape not in (shape, flat):
        raise CheckpointError(f"{SOURCE}: {name!r} is {array.shape}, expected {shape}.")
    if not np.isfinite(array).all():
        raise CheckpointError(f"{SOURCE}: {name!r} holds NaN or infinity.")
    return array.reshape(shape)
