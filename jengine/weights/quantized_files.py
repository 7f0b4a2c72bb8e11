"""Stored tensors of one quantized module: validated when taken, decoded when read.

In: a checkpoint's tensors, and a module. Out: tensors as `QuantizedWeights` declares them. Scales
are checked for NaN when read. Must not know layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from jengine.errors import CheckpointError
from jengine.models.tensors.quantized_pieces import QuantizedModule, columns
from jengine.weights import packed_values as packed
from jengine.weights.stored_parameter import TypedTensor

SCALES = ("F32", "F16", "BF16", "F8_E8M0")
Shape = tuple[int, ...]


@dataclass(frozen=True)
class DecodedTensor:
    """A tensor computed from stored ones when read."""

    name: str
    shape: Shape
    source: TypedTensor
    decode: Callable[[], np.ndarray]

    @property
    def file(self) -> Path:
        return self.source.file

    @property
    def size(self) -> int:
        return self.source.size

    def read(self) -> np.ndarray:
        found = self.decode()
        assert found.shape == self.shape, f"{self.name} is {found.shape}, not {self.shape}"
        return found


class NamedInFile(Protocol):
    """A tensor's file and name, for errors."""

    @property
    def name(self) -> str: ...

    @property
    def file(self) -> Path: ...


class ModuleTensors:
    """Takes and validates one module's stored tensors."""

    def __init__(
        self, folder: Path, module: QuantizedModule, tensors: Mapping[str, TypedTensor]
    ) -> None:
        self.folder = folder
        self.module = module
        self.format = module.stored.weights
        self.groups = self.format.groups(module.inputs)
        self.used: set[str] = set()
        self._tensors = tensors

    def has(self, name: str) -> bool:
        """Whether the module has a stored tensor `name`."""
        return f"{self.module.name}.{name}" in self._tensors

    def take(
        self, name: str, dtypes: tuple[str, ...], *shapes: Shape, joint: str = "."
    ) -> TypedTensor:
        """A tensor with one of these dtypes and shapes. Raises CheckpointError."""
        full = f"{self.module.name}{joint}{name}"
        if full not in self._tensors:
            raise CheckpointError(
                f"{self.folder}: tensor missing: {full!r}, as config.json says that"
                f" {self.module.name!r} is quantized. Is it to be in the list of ignored modules?"
            )
        tensor = self._tensors[full]
        if tensor.dtype not in dtypes or tensor.shape not in shapes:
            raise CheckpointError(
                f"{tensor.file}: {full!r} is {tensor.dtype} {tensor.shape}, expected"
                f" {' or '.join(dtypes)} {' or '.join(map(str, shapes))}."
            )
        self.used.add(full)
        return tensor

    def ignore(self, *names: str) -> None:
        """Mark redundant tensors as used."""
        self.used.update(f"{self.module.name}.{name}" for name in names if self.has(name))

    def made(
        self, name: str, source: TypedTensor, decode: Callable[[], np.ndarray]
    ) -> DecodedTensor:
        """A decoded tensor with the declared shape."""
        width = columns(name, self.format, self.module.inputs)
        experts = () if self.module.experts is None else (self.module.experts,)
        shape = *experts, self.module.outputs, width
        return DecodedTensor(f"{self.module.name}.{name}", shape, source, decode)

    def scale(self, name: str, *shapes: Shape, transposed: bool = False) -> DecodedTensor:
        """Scales with any of these shapes, expanded to [outputs, groups]."""
        source = self.take(name, SCALES, *shapes)

        def decode() -> np.ndarray:
            array = checked(source)
            return packed.scales_per_output(
                array.T if transposed else array, self.module.outputs, self.groups,
                self.module.stored.block_rows,
            )  # fmt: skip

        return self.made("scale", source, decode)

    def input_scale(self) -> list[DecodedTensor]:
        """Static activation scale, if stored."""
        if not self.format.static:
            return []
        source = self.take("input_scale", SCALES, (), (1,), (1, 1))
        return [
            self.made(
                "input_scale",
                source,
                lambda: packed.scales_per_output(checked(source), self.module.outputs, 1),
            )
        ]

    def refuse_order(self, name: str) -> None:
        """Raise CheckpointError for an activation order (g_idx) other than the identity."""
        if not self.has(name):
            return
        inputs, size = self.module.inputs, self.format.group or self.module.inputs
        order = self.take(name, ("I32",), (inputs,))
        if not np.array_equal(order.read(), np.arange(inputs) // size):
            raise CheckpointError(
                f"{order.file}: {order.name!r} gives inputs an order (act-order, desc_act), which"
                " is not built. Load the plain model with quantization='int4' instead."
            )


def checked(tensor: TypedTensor) -> np.ndarray:
    """Scales as float32. Raises CheckpointError unless all are finite."""
    return finite(tensor, np.asarray(tensor.read(), np.float32))


def finite(tensor: NamedInFile, array: np.ndarray) -> np.ndarray:
    """Return the array. Raises CheckpointError unless all values are finite."""
    if not np.isfinite(array).all():
        raise CheckpointError(
            f"{tensor.file}: {tensor.name!r} holds NaN or infinity, expected finite scales."
        )
    return array
