"""What compiled steps show of tokens that groups of devices divide: matmuls and collectives.

In: the text of a compiled step. Out: facts, and what is wrong with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

# The rows of a matmul of the library's, and of an array that is gathered.
MATMUL = re.compile(r'= \(?\w+\[(\d+),\d+\][^=\n]*custom_call_target="__cublas')
GATHER = re.compile(r" all-gather(?:-start)?\(")
# One device, eight groups of one, and four of two.
GROUPED = tuple(
    f"llama-8b, 8 rows + 16384 prompt tokens, triton{devices}, 4 layers, contexts to 131,072"
    for devices in (
        "",
        ", 8 devices in 8 groups that divide tokens",
        ", 8 devices in 4 groups that divide tokens",
    )
)
# Rows of the matmuls of layers, and gathers of a layer: of its keys and its values.
EXPECTED = dict(zip(GROUPED[1:], ((2056, 2), (4104, 2)), strict=True))


def group_facts(text: str, layers: int) -> dict[str, Any]:
    """The most rows of any matmul, and gathers."""
    return {
        "matmul_rows": max((int(rows) for rows in MATMUL.findall(text)), default=0),
        "gathers_a_layer": len(GATHER.findall(text)) // layers,
    }


def group_problems(row: Mapping[str, Any]) -> Iterator[str]:
    """Each device computes its own tokens, and nothing but keys and values goes to all."""
    if row["step"] not in EXPECTED:
        return
    names = "matmul_rows", "gathers_a_layer"
    for name, wanted in zip(names, EXPECTED[row["step"]], strict=True):
        if row[name] != wanted:
            yield f"{row['step']}: {name} is {row[name]}, expected {wanted}"
