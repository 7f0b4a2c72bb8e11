"""Formats of quantized weights as data: read from a checkpoint's config, or requested.

Module names are the checkpoint's. No jax, no files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Values = Literal["int8", "int4", "fp8", "fp4"]
Activations = Literal["int8", "fp8"]
# Packing and tensor names in files.
Layout = Literal[
    "int", "float", "packed", "mxfp4", "gptq", "awq", "fp8", "gpt_oss", "gguf",
    "bitlinear", "autobitlinear", "online_bitlinear",
]  # fmt: skip

# Codebook of GGUF's IQ4.
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

BITS: dict[Values, int] = {"int8": 8, "int4": 4, "fp8": 8, "fp4": 4}


@dataclass(frozen=True)
class Integers:
    """Small integers: centred on 0 if signed, else from 0."""

    bits: int
    signed: bool = True


@dataclass(frozen=True)
class StoredBlocks:
    """Contents of GGUF's blocks: weight = code * scale - least.

    Scales and minima ("least") are float16 per group, or integers in multiples of a float16 unit.
    """

    codes: Integers  # stored as int8, or packed in pairs up to 4 bits
    least: bool = False
    unit: int | None = None  # inputs per unit; None: no units
    scales: Integers | None = None
    leasts: Integers | None = None
    # Whether codes index IQ4's codebook.
    is_table: bool = False

    def integers(self, name: str) -> Integers | None:
        """Integer type of "scale" or "least"; None: float16, as for units."""
        return {"scale": self.scales, "least": self.leasts}.get(name)

    @property
    def shared_dtypes(self) -> dict[str, str]:
        """Dtypes of the per-group tensors, by name."""
        names = ("scale", "least") if self.least else ("scale",)
        if self.unit is None:
            return dict.fromkeys(names, "float16")
        units = dict.fromkeys([f"{name}_unit" for name in names], "float16")
        return {**dict.fromkeys(names, "int8"), **units}


@dataclass(frozen=True)
class WeightFormat:
    """Number format of a quantized weight: weight = (value - zero) * scale."""

    values: Values
    # Group size in inputs; the last group may be shorter. None: one scale per output.
    group: int | None = None
    # Whether zero points are stored, one per scale; values are then unsigned.
    zeros: bool = False
    # Dtype that activations are quantized to before the matmul; None: not quantized.
    activations: Activations | None = None
    # Whether the activation scale is static (stored). Otherwise it is dynamic per token, or, with
    # `activation_groups`, per token and group of inputs.
    static: bool = False
    activation_groups: bool = False
    # Whether zero points are multiples of 1/8; only for weights quantized at load, as no file
    # stores them.
    fine_zeros: bool = False
    # Whether zero points are arbitrary float32: minima of GGUF's blocks, in units of scales. No
    # other format stores them, so such weights are saved dequantized.
    real_zeros: bool = False
    # GGUF's block scales; there are no zero points then.
    blocks: StoredBlocks | None = None

    @property
    def bits(self) -> int:
        return BITS[self.values]

    @property
    def in_files(self) -> WeightFormat:
        """The format when saved: fine zero points become int8 eighths."""
        return WeightFormat("int8", self.group) if self.fine_zeros else self

    @property
    def flat(self) -> WeightFormat:
        """The same values with one float32 scale per group, and zero points in units of scales."""
        if self.blocks is None:
            return self
        least = self.blocks.least
        return WeightFormat(self.values, self.group, least, real_zeros=least)

    def shared_dtypes(self, dtype: str) -> dict[str, str]:
        """Dtypes of the per-group tensors (scales, zeros, ...), by name; `dtype` is the model's."""
        if self.blocks is not None:
            return self.blocks.shared_dtypes
        kind = "float32" if self.real_zeros else "float16" if self.fine_zeros else "uint8"
        zero = {"zero": kind} if self.zeros else {}
        return {"scale": dtype if self.fine_zeros else "float32", **zero}

    def groups(self, inputs: int, name: str = "scale") -> int:
        """Number of groups per output in a per-group tensor."""
        size = self.shared_by(name)
        return 1 if size is None else -(-inputs // size)

    def shared_by(self, name: str) -> int | None:
        """Group size in inputs of a per-group tensor; None: one group."""
        if self.blocks is not None and name.endswith("_unit"):
            return self.blocks.unit
        return self.group


@dataclass(frozen=True)
class StoredFormat:
    """A weight format and its layout in files."""

    layout: Layout
    weights: WeightFormat
    block_rows: int = 1  # outputs per scale in the file
    # GPTQ: subtracted from zero points when stored.
    zero_offset: int = 0


@dataclass(frozen=True)
class Quantization:
    """Which modules of a checkpoint are quantized, and how.

    A target is a module name, "re:" and a pattern for the start of a name, "part:" and consecutive
    components of a name, or "Linear" for all modules.
    """

    groups: tuple[tuple[tuple[str, ...], StoredFormat], ...]
    ignored: tuple[str, ...] = ()
    # Whether an unquantized checkpoint is quantized as it is loaded.
    on_load: bool = False
    # Whether the LM head is then quantized too, to int8.
    rounds_head: bool = False

    def format_of(self, module: str) -> StoredFormat | None:
        """Format of a module's weight; None if it is not quantized."""
        if any(matches(target, module) for target in self.ignored):
            return None
        for targets, stored in self.groups:
            if any(matches(target, module) for target in targets):
                return stored
        return None


def matches(target: str, module: str) -> bool:
    """Whether a target selects the module."""
    if target.startswith("re:"):
        return re.match(target[3:], module) is not None
    if target.startswith("part:"):
        return f".{target[5:]}." in f".{module}."
    return target in ("Linear", module)
