"""How quantized weights are stored, as data: read from a checkpoint's config, or asked for.

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

BITS: dict[Values, int] = {"int8": 8, "int4": 4, "fp8": 8, "fp4": 4}


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
    # Whether zeros are any float32: minimums of GGUF's blocks, counted in scales. No other file
    # holds them, so such weights are saved as plain ones.
    real_zeros: bool = False

    @property
    def bits(self) -> int:
        """Bits per value."""
        return BITS[self.values]

    @property
    def in_files(self) -> WeightFormat:
        """The format in files: fine zeros are stored as int8 eighths."""
        return WeightFormat("int8", self.group) if self.fine_zeros else self

    def shared_dtypes(self, dtype: str) -> dict[str, str]:
        """Dtypes of the scale and the zero, if any, of one group; `dtype` is the model's."""
        kind = "float32" if self.real_zeros else "float16" if self.fine_zeros else "uint8"
        zero = {"zero": kind} if self.zeros else {}
        return {"scale": dtype if self.fine_zeros else "float32", **zero}

    def groups(self, inputs: int) -> int:
        """Number of scales per output."""
        return 1 if self.group is None else -(-inputs // self.group)


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
