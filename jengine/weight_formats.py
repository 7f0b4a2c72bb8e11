"""Formats of quantized weights as data: read from a checkpoint's config, or requested.

Names of modules are those of the checkpoint. No jax, no files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Values = Literal["int8", "int4", "fp8", "fp4"]
Activations = Literal["int8", "fp8"]
# How a file packs values and what it calls its tensors.
Layout = Literal[
    "int", "float", "packed", "mxfp4", "gptq", "awq", "fp8", "gpt_oss", "gguf",
    "bitlinear", "autobitlinear", "online_bitlinear",
]  # fmt: skip

# Numbers that codes of GGUF's IQ4 stand for.
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

BITS: dict[Values, int] = {"int8": 8, "int4": 4, "fp8": 8, "fp4": 4}


@dataclass(frozen=True)
class Integers:
    """Small integers: centred on 0 if signed, else from 0."""

    bits: int
    signed: bool = True


@dataclass(frozen=True)
class StoredBlocks:
    """What GGUF's blocks store: weight = code * scale - least.

    Scales and least values are float16, one per group, or integers that count a float16 unit.
    """

    codes: Integers  # declared as int8, or, up to 4 bits, in pairs
    least: bool = False
    unit: int | None = None  # inputs of an output that share a unit; None: there are none
    scales: Integers | None = None
    leasts: Integers | None = None
    # Whether values are those of IQ4's table, which are stored by their places.
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
    """The numbers of a quantized weight: weight = (value - zero) * scale."""

    values: Values
    # Inputs of one output that share a scale; the last group may be shorter. None: all inputs.
    group: int | None = None
    # Whether zeros are stored, one per scale. Values are unsigned then.
    zeros: bool = False
    # What activations are rounded to before the matmul; None: they stay as they are.
    activations: Activations | None = None
    # Whether the scale of activations is stored. Otherwise it follows from each token, or, with
    # `activation_groups`, from each token's part of a group of inputs.
    static: bool = False
    activation_groups: bool = False
    # Whether zeros are multiples of an eighth, which no file holds: of weights rounded at load.
    fine_zeros: bool = False
    # Whether zeros are any float32: least values of GGUF's blocks, counted in scales. No other file
    # holds them, so such weights are saved as plain ones.
    real_zeros: bool = False
    # Scales as GGUF's blocks store them; there are no zeros then.
    blocks: StoredBlocks | None = None

    @property
    def bits(self) -> int:
        """Bits per value."""
        return BITS[self.values]

    @property
    def in_files(self) -> WeightFormat:
        """The format in files: fine zeros are stored as int8 eighths."""
        return WeightFormat("int8", self.group) if self.fine_zeros else self

    @property
    def flat(self) -> WeightFormat:
        """The format of the same values with one float32 scale per group, and zeros in scales."""
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
        """Number of groups per output of a per-group tensor."""
        size = self.shared_by(name)
        return 1 if size is None else -(-inputs // size)

    def shared_by(self, name: str) -> int | None:
        """Group size in inputs of a per-group tensor; None: one group."""
        if self.blocks is not None and name.endswith("_unit"):
            return self.blocks.unit
        return self.group


@dataclass(frozen=True)
class StoredFormat:
    """A weight format and how files hold it."""

    layout: Layout
    weights: WeightFormat
    block_rows: int = 1  # outputs that share a scale in the file
    # GPTQ: stored zeros are smaller by this much.
    zero_offset: int = 0


@dataclass(frozen=True)
class Quantization:
    """Which modules of a checkpoint are quantized, and how.

    A target is the name of a module, "re:" and a pattern for the start of its name, "part:" and
    consecutive parts of it, or "Linear" for all modules.
    """

    groups: tuple[tuple[tuple[str, ...], StoredFormat], ...]
    ignored: tuple[str, ...] = ()
    # Whether the checkpoint is plain, and weights are quantized as they are loaded.
    on_load: bool = False
    # Whether the output head is rounded then as well, to int8.
    rounds_head: bool = False

    def format_of(self, module: str) -> StoredFormat | None:
        """The format of this module's weight, None for a plain one."""
        if any(matches(target, module) for target in self.ignored):
            return None
        for targets, stored in self.groups:
            if any(matches(target, module) for target in targets):
                return stored
        return None


def matches(target: str, module: str) -> bool:
    """Whether a target covers the module."""
    if target.startswith("re:"):
        return re.match(target[3:], module) is not None
    if target.startswith("part:"):
        return f".{target[5:]}." in f".{module}."
    return target in ("Linear", module)
