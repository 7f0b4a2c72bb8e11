"""Digests of the parameters that this process loaded, for comparison across processes.

In: arrays before they are put on devices. Out: a digest of each one's shape, dtype and some
elements. Must not know devices.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from jengine.executor.multihost.agreement import digest_of

# Elements hashed per array: hashing all would take as long as loading.
SAMPLES = 256


class ParameterDigests:
    """Collects one digest per parameter."""

    def __init__(self) -> None:
        self._notes: dict[str, bytes] = {}

    def note(self, name: str, values: Any) -> None:
        self._notes[name] = digest_of(
            str(values.shape).encode(), str(values.dtype).encode(), sampled(values)
        )

    def note_missing(self, arrays: Iterable[tuple[str, jax.Array]]) -> None:
        """Add parameters that were not noted while loading."""
        for name, array in arrays:
            if name not in self._notes:
                self.note(name, array)

    def take(self) -> list[tuple[str, bytes]]:
        """Return digests by name, and reset."""
        notes, self._notes = self._notes, {}
        return sorted(notes.items())


def sampled(values: Any) -> bytes:
    """Bytes of a parameter's elements at fixed indices; of a file only these elements are read.
    Empty for an array sharded over processes, which is a single global array anyway."""
    if isinstance(values, jax.Array) and not values.is_fully_addressable:
        if not values.is_fully_replicated:
            return b""
        values = values.addressable_shards[0].data
    indices = np.linspace(0, max(values.size - 1, 0), min(SAMPLES, values.size), dtype=np.int64)
    if not isinstance(values, (jax.Array, np.ndarray)):
        return values.elements(indices).tobytes()
    return np.asarray(values.reshape(-1)[indices]).tobytes()
