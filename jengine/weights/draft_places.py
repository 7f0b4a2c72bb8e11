"""The tokens that a draft head knows, as a tensor of the model's vocabulary.

In: a file's offsets (`d2t`): place i of the head is the model's token i + d2t[i]. Out: for each of
the model's tokens its place, or -1. Must not know models.
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
    """A tensor that is made of another one as it is read."""

    name: str
    offsets: StoredTensor
    vocab_size: int

    @property
    def file(self) -> Path:
        """The file of the offsets."""
        return self.offsets.file

    @property
    def shape(self) -> tuple[int, ...]:
        """One place for each of the model's tokens."""
        return (self.vocab_size,)

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self.offsets.size

    def read(self) -> np.ndarray:
        """i32: the place of each token."""
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
