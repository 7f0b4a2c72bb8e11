"""Matmuls of rows that each belong to a group with a matrix of its own, such as experts.

Every token chooses some groups; a pair of token and choice is a row, numbered token * choices +
choice. `sort_by_group` brings rows into the order of their groups, `multiply_tokens` reads tokens
in that order, and `combine_rows` gives weighted sums by token again. So nothing is gathered or
scattered outside the matmuls. A row without a group is padding: it costs nothing and adds zero.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.choice import choose
from pallas_kernels.grouped_matmul.groups import Groups as Groups
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
    """Rows in the order of their groups, stable; those of no group, such as -1, come last."""
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
    """x[token] @ weight[group] for every row, in sorted order and the weight's dtype.

    With an activation, outputs are pairs (gate, up), and the result is activation(gate) * up.
    Rows of padding, which are the last, are arbitrary.
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
    """The sum over each token's rows of x @ weight[group] * scale, for x in sorted order.

    Each addend is rounded to the weight's dtype, or kept in float32 if that is float16.
    """
    run = choose("combine_rows", implementation, COMBINE)
    return run(x.astype(weight.dtype), weight, groups, scales.astype(jnp.float32))
