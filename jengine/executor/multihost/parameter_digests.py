"""What this process read or was given as parameters, as digests that can be compared.

In: arrays on their way to the devices. Out: a digest of shape, dtype and some elements of each.
Must not know where they go.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from jengine.executor.multihost.agreement import digest_of

# Elements looked at, spread over the array: reading all of it would take as long as loading it.
SAMPLES = 256


class ParameterDigests:
    """Notes each parameter once; `take` hands the notes over and begins anew."""

    def __init__(self) -> None:
        self._notes: dict[str, bytes] = {}

    def note(self, name: str, values: Any) -> None:
        """Look at one parameter."""
        self._notes[name] = digest_of(
            str(values.shape).encode(), str(values.dtype).encode(), sampled(values)
        )

    def note_missing(self, arrays: Iterable[tuple[str, jax.Array]]) -> None:
        """Look at what came to its place without being noted on the way."""
        for name, array in arrays:
            if name not in self._notes:
                self.note(name, array)

    def take(self) -> list[tuple[str, bytes]]:
        """The notes, by name."""
        notes, self._notes = self._notes, {}
        return sorted(notes.items())


def sampled(values: Any) -> bytes:
    """The bytes of elements at fixed places; of an array that spans processes only what each
    process holds whole, as it is one array already. Of a parameter in a file no more is read."""
    if isinstance(values, jax.Array) and not values.is_fully_addressable:
        if not values.is_fully_replicated:
            return b""
        values = values.addressable_shards[0].data
    indices = np.linspace(0, max(values.size - 1, 0), min(SAMPLES, values.size), dtype=np.int64)
    if not isinstance(values, (jax.Array, np.ndarray)):
        return values.elements(indices).tobytes()
    return np.asarray(values.reshape(-1)[indices]).tobytes()
