"""Emulates kernels' inline PTX in Triton's interpreter, which does not support it.

In: PTX from a register $1 (two 16-bit values) to $0 (two bfloat16). Results have the bits of a
device's, so tests in the interpreter cover the text that devices run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

# lop3's lookup table for (a & b) | c.
AND_OR = 0xEA


def as_floats(pairs: np.ndarray) -> np.ndarray:
    """Pairs of bfloat16 as float64, in a new last dimension."""
    halves = np.stack((pairs << 16, pairs & 0xFFFF0000), -1)
    return halves.view(np.float32).astype(np.float64)


def multiply_add_pairs(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of pairs of bfloat16. Correctly rounded if float32 holds the exact result."""
    exact = as_floats(a) * as_floats(b) + as_floats(c)
    bits = exact.astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.uint32)
    return bits[..., 0] | bits[..., 1] << 16


def three_inputs(a: np.ndarray, b: np.ndarray, c: np.ndarray, table: np.ndarray) -> np.ndarray:
    if table != AND_OR:
        raise NotImplementedError(f"lop3 with the table {table:#x}; known is {AND_OR:#x}")
    return a & b | c


# On arrays of registers of 32 bits.
INSTRUCTIONS: Mapping[str, Callable[..., np.ndarray]] = {
    "mov.b32": lambda a: a,
    "and.b32": np.bitwise_and,
    "shl.b32": np.left_shift,
    "shr.u32": np.right_shift,
    "lop3.b32": three_inputs,
    "fma.rn.bf16x2": multiply_add_pairs,
}


class Result(NamedTuple):
    """Stands in for the MLIR operation that Triton's builder returns."""

    handle: Any

    def get_result(self, index: int) -> Any:
        return self[index]


def run_assembly(
    builder: Any, text: str, constraints: str, operands: Sequence[Any], *others: Any
) -> Result:
    """Replaces `create_inline_asm` of the interpreter's builder."""
    (given,) = operands
    registers = {"$1": np.ascontiguousarray(given.data).view(np.uint32)}
    for line in text.strip("{}\n").splitlines():
        name, _, rest = line.rstrip(";").partition(" ")
        if name != ".reg":
            target, *sources = rest.split(", ")
            values = [
                registers[one] if one in registers else np.uint32(int(one, 0)) for one in sources
            ]
            registers[target] = INSTRUCTIONS[name](*values)
    return Result(TensorHandle(registers["$0"].view(np.uint16), tl.bfloat16))
