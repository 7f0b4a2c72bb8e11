"""The reduced vocabulary of an EAGLE-3 head, as a lookup from the model's vocabulary.

In: the offsets in a file (`d2t`): entry i of the head is token i + d2t[i]. Out: each token's entry,
or -1. Must not know models.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jengine.errors import CheckpointError
from jengine.weights.safetensors_file import StoredTensor

INTEGERS = ("I32", "I64")


@dataclass(frozen=True)
class DraftPlaces:
    """Lookup tensor, computed from the offsets when read."""

    name: str
    offsets: StoredTensor
    vocab_size: int

    @property
    def file(self) -> Path:
        return self.offsets.file

    @property
    def shape(self) -> tuple[int, ...]:
        """(vocab_size,)."""
        return (self.vocab_size,)

    @property
    def size(self) -> int:
        return self.offsets.size

    def read(self) -> np.ndarray:
        """The entry of each token, or -1; i32. Raises CheckpointError."""
        stored = self.offsets
        if stored.dtype not in INTEGERS or len(stored.shape) != 1:
            raise CheckpointError(
                f"{stored.file}: {stored.name!r} is {stored.dtype} {stored.shape}, expected a "
                f"vector of integers ({', '.join(INTEGERS)})."
            )
        index = np.arange(stored.shape[0])
        tokens = index + stored.read()
        if tokens.size and not (tokens.min() >= 0 and tokens.max() < self.vocab_size):
            raise CheckpointError(
                f"{stored.file}: {stored.name!r} names tokens from {tokens.min()} to "
                f"{tokens.max()}, expected tokens below {self.vocab_size}."
            )
        places = np.full(self.vocab_size, -1, np.int32)
        places[tokens] = index
        return places
