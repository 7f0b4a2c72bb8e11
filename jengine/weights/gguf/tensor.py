"""A tensor of a checkpoint, made of packed ones when it is read."""

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
    """A tensor by its name in Hugging Face's files, or the values or scales of a quantized one.

    `dtype` is what it is read as, in the words of safetensors. What several packed tensors hold is
    put together by `turn`, which may also order one otherwise.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    packed: tuple[PackedTensor, ...]
    decode: Decode
    turn: Turn | None = None

    @property
    def file(self) -> Path:
        """The file that holds it, or its first part."""
        return self.packed[0].file

    @property
    def size(self) -> int:
        """Bytes in files, those of values and scales together."""
        return sum(one.size for one in self.packed)

    def read(self) -> np.ndarray:
        """The array in Hugging Face's order."""
        arrays = [self.decode(one) for one in self.packed]
        array = arrays[0] if self.turn is None else self.turn(*arrays)
        return array.reshape(self.shape)


def plain_tensor(
    name: str,
    packed: tuple[PackedTensor, ...],
    shape: tuple[int, ...] | None = None,
    turn: Turn | None = None,
) -> GgufTensor:
    """A tensor that is dequantized, unless it is plain."""
    kind = packed[0].type.name
    if kind in PLAIN and all(one.type.name == kind for one in packed):
        return GgufTensor(name, kind, shape or packed[0].shape, packed, plain_array, turn)
    return GgufTensor(name, "F32", shape or packed[0].shape, packed, dequantized, turn)


def dequantized(packed: PackedTensor) -> np.ndarray:
    """Numbers in float32."""
    return finite(packed, plain_array(packed).astype(np.float32))


def expert_of(packed: PackedTensor, number: int) -> PackedTensor:
    """One of several matrices that lie one after the other."""
    size = packed.size // packed.shape[0]
    return replace(packed, shape=packed.shape[1:], start=packed.start + number * size, size=size)
