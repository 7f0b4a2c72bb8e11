"""Metadata of one architecture; every key must be read or known to be harmless.

In: a header. Out: values by keys without the architecture's prefix. Must not know config.json.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jengine.errors import CheckpointError
from jengine.weights.gguf.architectures import (
    ARCHITECTURES,
    HARMLESS,
    NAMES,
    POOLING,
    VARIANTS,
    Architecture,
)
from jengine.weights.gguf.header import GgufHeader

ARCHITECTURE = "general.architecture"


class Metadata:
    """Looks up keys and records which were read."""

    def __init__(self, header: GgufHeader) -> None:
        self.header = header
        own = header.metadata.get(ARCHITECTURE)
        if not isinstance(own, str) or own not in NAMES:
            raise CheckpointError(
                f"{header.file}: {ARCHITECTURE} is {own!r}, expected one of"
                f" {', '.join(NAMES)}. Other models are read from safetensors."
            )
        self.name = own
        self.read = {*HARMLESS, POOLING}
        self.architecture = self._architecture()
        self.read |= {*self.architecture.harmless}

    def _architecture(self) -> Architecture:
        for name, key, values, variant in VARIANTS:
            found = self.get(key) if name == self.name else None
            if isinstance(found, int) and (found in values if values else found):
                return ARCHITECTURES[variant]
        return ARCHITECTURES[self.name]

    def refuse(self, key: str, expected: str) -> CheckpointError:
        """CheckpointError about one key."""
        given = self.header.metadata.get(f"{self.name}.{key}")
        return CheckpointError(
            f"{self.header.file}: {self.name}.{key} is {given!r}, expected {expected}."
        )

    def get(self, key: str) -> int | float | bool | str | None:
        """A value, or None. A list with one value for all layers counts as that value."""
        self.read.add(key)
        found = self.header.metadata.get(f"{self.name}.{key}")
        if isinstance(found, np.ndarray) and len({*found.tolist()}) == 1:
            found = found.tolist()[0]
        if not isinstance(found, int | float | str | None):
            raise self.refuse(key, "one value, the same in all layers")
        return found

    def each(self, key: str) -> list[int] | None:
        """A per-layer list of flags, or None."""
        found = self.header.metadata.get(f"{self.name}.{key}")
        if not isinstance(found, np.ndarray):
            return None
        self.read.add(key)
        return [int(one) for one in found]

    def number(self, key: str, default: float | None = None) -> Any:
        """A number, or a per-layer list of equal numbers. Raises CheckpointError."""
        found = self.get(key)
        found = default if found is None else found
        if not isinstance(found, int | float) or isinstance(found, bool):
            raise self.refuse(key, "a number, the same in all layers")
        return found

    def has(self, tensor: str) -> bool:
        return tensor in self.header.tensors

    def matrix_shape(self, name: str) -> tuple[int, ...]:
        """Shape of a matrix. Raises CheckpointError if it is missing."""
        found = self.header.tensors.get(name)
        if found is None or len(found.shape) != 2:
            raise CheckpointError(f"{self.header.file}: tensor missing: {name!r}.")
        return found.shape

    def refuse_unread(self) -> None:
        """Raise CheckpointError for unread keys, which may change the weights' meaning."""
        prefix = f"{self.name}."
        given = {key.removeprefix(prefix) for key in self.header.metadata if key.startswith(prefix)}
        for key in sorted(given - self.read):
            found = self.header.metadata[prefix + key]
            if not isinstance(found, int | float | str) or found:
                raise self.refuse(key, "nothing: what it means is not built for this architecture")
