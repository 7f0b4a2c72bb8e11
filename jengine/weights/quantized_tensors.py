"""The tensors of quantized modules, under the names and in the form of `QuantizedWeights`.

In: a checkpoint's tensors, and its quantized modules. Out: tensors by name, decoded when they are
read. Types and shapes are checked first; scales are checked for NaN as they are read. Must not know
models or devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jengine.errors import CheckpointError
from jengine.models.quantized import QuantizedModule
from jengine.weights import packed_values as packed
from jengine.weights.safetensors_file import StoredTensor

SCALES = ("F32", "F16", "BF16", "F8_E8M0")
Shape = tuple[int, ...]


@dataclass(frozen=True)
class DecodedTensor:
    """A tensor made of stored ones."""

    name: str
    shape: Shape
    source: StoredTensor
    decode: Callable[[], np.ndarray]

    @property
    def file(self) -> Path:
        """The file that holds what it is made of."""
        return self.source.file

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self.source.size

    def read(self) -> np.ndarray:
        """The decoded array."""
        found = self.decode()
        assert found.shape == self.shape, f"{self.name} is {found.shape}, not {self.shape}"
        return found


def decoded(
    folder: Path, tensors: Mapping[str, StoredTensor], modules: Iterable[QuantizedModule]
) -> dict[str, StoredTensor | DecodedTensor]:
    """All tensors, those of quantized modules decoded."""
    found: dict[str, StoredTensor | DecodedTensor] = dict(tensors)
    for module in modules:
        files = Files(folder, module, tensors)
        made = LAYOUTS[module.stored.layout](files)
        for name in files.used:
            found.pop(name, None)
        found.update({one.name: one for one in made})
    return found


class Files:
    """The stored tensors of one module, checked as they are taken."""

    def __init__(
        self, folder: Path, module: QuantizedModule, tensors: Mapping[str, StoredTensor]
    ) -> None:
        self.folder = folder
        self.module = module
        self.format = module.stored.weights
        self.groups = self.format.groups(module.inputs)
        self.used: set[str] = set()
        self._tensors = tensors

    def has(self, name: str) -> bool:
        """Whether the file holds a tensor of the module under this name."""
        return f"{self.module.name}.{name}" in self._tensors

    def take(self, name: str, dtypes: tuple[str, ...], *shapes: Shape) -> StoredTensor:
        """A tensor of one of these types and shapes."""
        full = f"{self.module.name}.{name}"
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
        """Tensors that say nothing that is not known."""
        self.used.update(f"{self.module.name}.{name}" for name in names if self.has(name))

    def made(
        self, name: str, source: StoredTensor, decode: Callable[[], np.ndarray]
    ) -> DecodedTensor:
        """One of the tensors that the model loads."""
        width = self.groups
        if name == "weight":
            width = self.module.inputs * self.format.bits // 8
        elif name == "input_scale":
            width = 1
        shape = self.module.outputs, width
        return DecodedTensor(f"{self.module.name}.{name}", shape, source, decode)

    def scale(self, name: str, *shapes: Shape, transposed: bool = False) -> DecodedTensor:
        """The scales, of any of these shapes, as one for each output and group."""
        source = self.take(name, SCALES, *shapes)

        def decode() -> np.ndarray:
            array = checked(source)
            return packed.scales_per_output(
                array.T if transposed else array, self.module.outputs, self.groups,
                self.module.stored.block_rows,
            )  # fmt: skip

        return self.made("scale", source, decode)

    def input_scale(self) -> list[DecodedTensor]:
        """The scale of activations, if it is stored."""
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
        """Refuse inputs that are not in order; an order that changes nothing is read over."""
        if not self.has(name):
            return
        inputs, size = self.module.inputs, self.format.group or self.module.inputs
        order = self.take(name, ("I32",), (inputs,))
        if not np.array_equal(order.read(), np.arange(inputs) // size):
            raise CheckpointError(
                f"{order.file}: {order.name!r} gives inputs an order (act-order, desc_act), which"
                " is not built. Load the plain model with quantization='int4' instead."
            )


def checked(tensor: StoredTensor) -> np.ndarray:
    """Scales as float32, all finite."""
    return finite(tensor, np.asarray(tensor.read(), np.float32))


def finite(tensor: StoredTensor, array: np.ndarray) -> np.ndarray:
    """The array, read from this tensor."""
    if not np.isfinite(array).all():
        raise CheckpointError(
            f"{tensor.file}: {tensor.name!r} holds NaN or infinity, expected finite scales."
        )
    return array


def _scale_shapes(files: Files) -> tuple[Shape, ...]:
    """The shapes of compressed-tensors' and FP8's scales."""
    outputs, rows = files.module.outputs, files.module.stored.block_rows
    if files.groups > 1 or rows > 1:
        return ((-(-outputs // rows), files.groups),)
    return (outputs, 1), (outputs,), (1, 1), (1,), ()


def _read_plain(files: Files, dtype: str, scale: str) -> list[DecodedTensor]:
    """Values as they are, [outputs, inputs]."""
    weight = files.take("weight", (dtype,), (files.module.outputs, files.module.inputs))
    files.ignore("weight_shape")
    return [
        files.made("weight", weight, weight.read),
        files.scale(scale, *_scale_shapes(files)),
        *files.input_scale(),
    ]


def _read_int(files: Files) -> list[DecodedTensor]:
    return _read_plain(files, "I8", "weight_scale")


def _read_float(files: Files) -> list[DecodedTensor]:
    return _read_plain(files, "F8_E4M3", "weight_scale")


def _read_fp8(files: Files) -> list[DecodedTensor]:
    """DeepSeek and Qwen call the scales of blocks inverse; they multiply all the same."""
    inverse = files.has("weight_scale_inv")
    if not files.format.static:
        files.ignore("input_scale")
    return _read_plain(files, "F8_E4M3", "weight_scale_inv" if inverse else "weight_scale")


def _read_packed(files: Files) -> list[DecodedTensor]:
    """compressed-tensors' integers in words of 32 bits along the inputs."""
    module, bits = files.module, files.format.bits
    words = -(-module.inputs * bits // 32)
    weight = files.take("weight_packed", ("I32",), (module.outputs, words))
    files.refuse_order("weight_g_idx")
    files.ignore("weight_shape")
    width = module.inputs * bits // 8

    def values() -> np.ndarray:
        return packed.values_along_inputs(weight.read(), bits)[:, :width]

    found = [
        files.made("weight", weight, values),
        files.scale("weight_scale", *_scale_shapes(files)),
        *files.input_scale(),
    ]
    if not files.format.zeros:
        files.ignore("weight_zero_point")
        return found
    zeros = files.take(
        "weight_zero_point", ("I32",), (-(-module.outputs * bits // 32), files.groups)
    )

    def decode() -> np.ndarray:
        return packed.unsigned_values(zeros.read().T, bits)[:, : module.outputs].T

    return [*found, files.made("zero", zeros, decode)]


def _read_mxfp4(files: Files) -> list[DecodedTensor]:
    """Pairs of FP4 along the inputs, and the exponents of scales."""
    module = files.module
    weight = files.take("weight_packed", ("U8",), (module.outputs, module.inputs // 2))
    scale = files.take("weight_scale", ("U8", "F8_E8M0"), (module.outputs, files.groups))
    return [
        files.made("weight", weight, weight.read),
        files.made("scale", scale, lambda: finite(scale, packed.power_of_two(scale.read()))),
    ]


def _read_gptq(files: Files) -> list[DecodedTensor]:
    """Integers in words along the inputs, one row of words per 32 bits; zeros along the outputs."""
    module, bits, groups = files.module, files.format.bits, files.groups
    _check_words(files, module.inputs * bits, module.outputs * bits)
    weight = files.take("qweight", ("I32",), (module.inputs * bits // 32, module.outputs))
    zeros = files.take("qzeros", ("I32",), (groups, module.outputs * bits // 32))
    files.refuse_order("g_idx")
    offset = np.uint8(module.stored.zero_offset)

    def decode() -> np.ndarray:
        # A zero of 0 minus one is stored as the largest value.
        found = packed.unsigned_values(zeros.read(), bits) + offset
        return (found & np.uint8(2**bits - 1)).T

    return [
        files.made("weight", weight, lambda: packed.values_along_rows(weight.read(), bits)),
        files.scale("scales", (groups, module.outputs), transposed=True),
        files.made("zero", zeros, decode),
    ]


def _read_awq(files: Files) -> list[DecodedTensor]:
    """Integers in words along the outputs, in an order of their own."""
    module, groups = files.module, files.groups
    _check_words(files, module.outputs * 4, module.inputs * 16)
    weight = files.take("qweight", ("I32",), (module.inputs, module.outputs // 8))
    zeros = files.take("qzeros", ("I32",), (groups, module.outputs // 8))
    return [
        files.made("weight", weight, lambda: packed.awq_values(weight.read())),
        files.scale("scales", (groups, module.outputs), transposed=True),
        files.made("zero", zeros, lambda: packed.awq_columns(zeros.read()).T),
    ]


def _check_words(files: Files, *bits: int) -> None:
    if any(count % 32 for count in bits):
        module = files.module
        raise CheckpointError(
            f"{files.folder}: {module.name!r} has {module.inputs} inputs and {module.outputs}"
            f" outputs, which {module.stored.layout} cannot pack in words of 32 bits."
        )


LAYOUTS: Mapping[str, Callable[[Files], list[DecodedTensor]]] = {
    "int": _read_int,
    "float": _read_float,
    "fp8": _read_fp8,
    "packed": _read_packed,
    "mxfp4": _read_mxfp4,
    "gptq": _read_gptq,
    "awq": _read_awq,
}
