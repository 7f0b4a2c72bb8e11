"""Grouped matmuls in plain XLA."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from pallas_kernels.grouped_matmul.groups import RowGroups, addend_dtype
from pallas_kernels.quantized_matmul.coded import CodedWeight

ACTIVATIONS = {"silu": jax.nn.silu, "gelu_tanh": jax.nn.gelu}


def sort_by_group_xla(groups: Array, num_groups: int) -> RowGroups:
    """See `sort_by_group`."""
    known = (groups >= 0) & (groups < num_groups)
    groups = jnp.where(known, groups, num_groups)
    sizes = jnp.bincount(groups, length=num_groups + 1)[:num_groups]
    return RowGroups(jnp.argsort(groups).astype(jnp.int32), sizes.astype(jnp.int32))


def multiply_tokens_xla(
    x: Array, weight: Array | CodedWeight, groups: RowGroups, activation: str | None
) -> Array:
    """See `multiply_tokens`."""
    choices = groups.order.shape[0] // x.shape[0]
    made = multiplied(x[groups.order // choices], weight, groups.sizes)
    if activation is not None:
        made = ACTIVATIONS[activation](made[:, ::2]) * made[:, 1::2]
    return made.astype(weight.dtype)


def combine_rows_xla(
    x: Array, weight: Array | CodedWeight, groups: RowGroups, scales: Array
) -> Array:
    """See `combine_rows`."""
    made = multiplied(x, weight, groups.sizes)
    real = jnp.arange(x.shape[0]) < jnp.sum(groups.sizes)
    scale = scales.reshape(-1)[groups.order]
    made = jnp.where(real[:, None], made * scale[:, None], 0.0).astype(addend_dtype(weight.dtype))
    made = made[jnp.argsort(groups.order)].reshape(*scales.shape, -1)
    return jnp.sum(made.astype(jnp.float32), axis=1)


def multiplied(x: Array, weight: Array | CodedWeight, sizes: Array) -> Array:
    """Grouped matmul in float32, dequantizing the weight if needed."""
    matrices = weight.plain() if isinstance(weight, CodedWeight) else weight
    return lax.ragged_dot(x, matrices, sizes, preferred_element_type=jnp.float32)
