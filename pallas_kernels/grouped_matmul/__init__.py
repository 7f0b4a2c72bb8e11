"""Grouped matmuls (mixture of experts): each row is multiplied by its group's matrix.

Each token chooses several groups; a row is a (token, choice) pair, numbered token * choices +
choice. `sort_by_group` sorts rows by group, `multiply_tokens` reads tokens in that order, and
`combine_rows` returns weighted sums by token: no gather or scatter outside the matmuls. Rows
without a group are padding, cost nothing and add zero.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.choice import choose
from pallas_kernels.grouped_matmul.groups import RowGroups as Groups
from pallas_kernels.grouped_matmul.xla import ACTIVATIONS as ACTIVATIONS
from pallas_kernels.grouped_matmul.xla import (
    combine_rows_xla,
    multiply_tokens_xla,
    sort_by_group_xla,
)
from pallas_kernels.quantized_matmul.coded import CodedWeight

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int

MODULE = "pallas_kernels.grouped_matmul.triton"
SORT = {"xla": sort_by_group_xla, "triton": f"{MODULE}:sort_by_group_triton"}
MULTIPLY = {"xla": multiply_tokens_xla, "triton": f"{MODULE}:multiply_tokens_triton"}
COMBINE = {"xla": combine_rows_xla, "triton": f"{MODULE}:combine_rows_triton"}


@partial(jax.jit, static_argnames=("num_groups", "implementation"))
def sort_by_group(
    groups: Int[Array, " rows"], num_groups: int, *, implementation: str | None = None
) -> Groups:
    """Stable sort of rows by group; rows outside the groups, such as -1, come last."""
    run = choose("sort_by_group", implementation, SORT)
    return run(groups.astype(jnp.int32), num_groups)


@partial(jax.jit, static_argnames=("activation", "implementation"))
def multiply_tokens(
    x: Float[Array, "tokens inputs"],
    weight: Float[Array, "groups inputs outputs"] | CodedWeight,
    groups: Groups,
    *,
    activation: str | None = None,
    implementation: str | None = None,
) -> Float[Array, "rows ..."]:
    """x[token] @ weight[group] per row, in sorted order and the weight's dtype.

    With an activation, outputs are (gate, up) pairs and the result is activation(gate) * up.
    Padding rows, at the end, hold arbitrary values.
    """
    run = choose("multiply_tokens", implementation, MULTIPLY)
    return run(x.astype(weight.dtype), weight, groups, activation)


@partial(jax.jit, static_argnames="implementation")
def combine_rows(
    x: Float[Array, "rows inputs"],
    weight: Float[Array, "groups inputs outputs"] | CodedWeight,
    groups: Groups,
    scales: Float[Array, "tokens choices"],
    *,
    implementation: str | None = None,
) -> Float32[Array, "tokens outputs"]:
    """Sum over each token's rows of x @ weight[group] * scale, for x in sorted order.

    Addends are rounded to the weight's dtype, except that float16 ones are kept in float32.
    """
    run = choose("combine_rows", implementation, COMBINE)
    return run(x.astype(weight.dtype), weight, groups, scales.astype(jnp.float32))
