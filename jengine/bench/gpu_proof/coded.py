"""Kernel calls of matmuls with few-bit quantized weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax.numpy as jnp

from jengine.bench.gpu_proof.cases import CodedCase
from jengine.bench.gpu_proof.kernel_calls import shape, traced
from pallas_kernels.grouped_matmul import combine_rows, multiply_tokens, sort_by_group
from pallas_kernels.quantized_matmul import CodedWeight, multiply_coded, multiply_float8
from pallas_kernels.quantized_matmul.coded import FOUR_BITS, part_for

STORED = {"int4": "uint8", "fp4": "uint8", "int8": "int8", "fp8": "float8_e4m3fn"}
# Ada, the first that multiplies FP8.
FLOAT8_CAPABILITY = 89


def coded_calls(case: CodedCase, capability: int) -> Iterator[Any]:
    """Kernel calls of a matmul or MoE layer; none for devices without its number format."""
    use: dict[str, Any] = {"implementation": "triton"}
    if case.experts:
        yield from expert_calls(case)
    elif not case.float8:
        weight = coded_weight(case, case.inputs, case.columns)
        yield from traced(
            partial(multiply_coded, dtype="bfloat16", **use),
            shape((case.rows, case.inputs), "bfloat16"), weight,
        )  # fmt: skip
    elif capability >= FLOAT8_CAPABILITY:
        weight = coded_weight(case, case.inputs, case.columns)
        yield from traced(
            partial(multiply_float8, dtype="bfloat16", **use),
            shape((case.rows, case.inputs), "float8_e4m3fn"),
            shape((case.rows, case.inputs // case.group), "float32"), weight,
        )  # fmt: skip


def expert_calls(case: CodedCase) -> Iterator[Any]:
    """Both matmuls of a MoE layer, with gating in the kernel or by XLA."""
    use: dict[str, Any] = {"implementation": "triton"}

    def layer(x: Any, chosen: Any, scales: Any, gate_up: Any, down: Any) -> Any:
        groups = sort_by_group(chosen.reshape(-1), case.experts, **use)
        inside = multiply_tokens(x, gate_up, groups, activation=case.activation, **use)
        return combine_rows(inside[:, : case.columns], down, groups, scales, **use)

    picked = (case.rows, case.choices)
    made = traced(
        layer, shape((case.rows, case.inputs), "bfloat16"), shape(picked, "int32"),
        shape(picked, "float32"),
        coded_weight(case, case.inputs, 2 * case.columns, case.experts),
        coded_weight(case, case.columns, case.inputs, case.experts),
    )  # fmt: skip
    # Sorting is the same for plain weights.
    yield from (one for one in made if one.params["kernel"].__name__ == "multiply_coded_tiles")


def coded_weight(case: CodedCase, inputs: int, columns: int, *experts: int) -> CodedWeight:
    """An abstract quantized weight: shapes in place of arrays."""
    array: Callable[..., Any] = shape
    part = part_for(case.kind, inputs, case.group)
    assert part is not None, f"{case} has no whole blocks"
    width = inputs // 2 if case.kind in FOUR_BITS else inputs
    scales = (*experts, -(-inputs // case.group), columns)
    return CodedWeight(
        array((*experts, columns, width), STORED[case.kind]),
        array(scales, "uint8" if case.kind == "fp4" else "float32"),
        case.kind, case.group, part, jnp.dtype("bfloat16"),
        array(scales, "uint8") if case.zeros else None,
    )  # fmt: skip
