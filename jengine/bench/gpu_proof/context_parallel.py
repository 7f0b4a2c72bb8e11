"""Context parallelism in compiled steps: matmul sizes and collectives.

In: the text of a compiled step. Out: facts, and what is wrong with them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

# The rows of a matmul of the library's.
MATMUL = re.compile(r'= \(?\w+\[(\d+),\d+\][^=\n]*custom_call_target="__cublas')
COLLECTIVE = re.compile(
    r" (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter|ragged-all-to-all)"
    r"(?:-start)?\("
)
# One device, eight groups of one, and four of two.
GROUPED = tuple(
    f"llama-8b, 8 rows + 16384 prompt tokens, triton{devices}, 4 layers, contexts to 131,072"
    for devices in (
        "",
        ", 8 devices in 8 groups that divide tokens",
        ", 8 devices in 4 groups that divide tokens",
    )
)
# Rows of the matmuls of layers, and collectives of four layers: two gathers of each, of keys and of
# values, and a sum of the hidden states that logits come from. Groups of two devices have those of
# tensor parallelism as well: two sums of each layer, one of embeddings, two of the best tokens.
EXPECTED: dict[str, tuple[int, dict[str, int]]] = {
    GROUPED[1]: (2056, {"all-gather": 8, "all-reduce": 1}),
    GROUPED[2]: (4104, {"all-gather": 8, "all-reduce": 12}),
}


def group_facts(text: str) -> dict[str, Any]:
    """Largest number of rows of any matmul, and all collectives of the step."""
    return {
        "matmul_rows": max((int(rows) for rows in MATMUL.findall(text)), default=0),
        "collectives": dict(sorted(Counter(COLLECTIVE.findall(text)).items())),
    }


def group_problems(row: Mapping[str, Any]) -> Iterator[str]:
    """Deviations from the expected matmul sizes and collectives."""
    if row["step"] not in EXPECTED:
        return
    names = "matmul_rows", "collectives"
    for name, wanted in zip(names, EXPECTED[row["step"]], strict=True):
        if row[name] != wanted:
            yield f"{row['step']}: {name} is {row[name]}, expected {wanted}"
