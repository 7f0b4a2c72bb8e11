"""A checkpoint tensor assembled from GGUF tensors when read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from jengine.weights.gguf.blocks import PLAIN, plain_array
from jengine.weights.gguf.header import PackedTensor
from jengine.weights.quantized_files import finite

Decode = Callable[[PackedTensor], np.ndarray]
Turn = Callable[..., np.ndarray]


@dataclass(frozen=True)
class GgufTensor:
    """A tensor under its Hugging Face name, or one of the tensors of a quantized weight.

    `dtype` is the dtype read, in safetensors' names. `turn` combines several packed tensors or
    reorders one.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    packed: tuple[PackedTensor, ...]
    decode: Decode
    turn: Turn | None = None

    @property
    def file(self) -> Path:
        return self.packed[0].file

    @property
    def size(self) -> int:
        """Bytes in files, values and scales together."""
        return sum(one.size for one in self.packed)

    def read(self) -> np.ndarray:
        """The array in Hugging Face's layout."""
        arrays = [self.decode(one) for one in self.packed]
        array = arrays[0] if self.turn is None else self.turn(*arrays)
        return array.reshape(self.shape)


def plain_tensor(
    name: str,
    packed: tuple[PackedTensor, ...],
    shape: tuple[int, ...] | None = None,
    turn: Turn | None = None,
) -> GgufTensor:
    """An unquantized or dequantized tensor."""
    kind = packed[0].type.name
    if kind in PLAIN and all(one.type.name == kind for one in packed):
        return GgufTensor(name, kind, shape or packed[0].shape, packed, plain_array, turn)
    return GgufTensor(name, "F32", shape or packed[0].shape, packed, dequantized, turn)


def dequantized(packed: PackedTensor) -> np.ndarray:
    """Dequantize to float32. Raises CheckpointError for non-finite values."""
    return finite(packed, plain_array(packed).astype(np.float32))


def expert_of(packed: PackedTensor, number: int) -> PackedTensor:
    """One expert's matrix of a stacked tensor."""
    size = packed.size // packed.shape[0]
    return replace(packed, shape=packed.shape[1:], start=packed.start + number * size, size=size)
