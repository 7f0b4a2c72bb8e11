"""Matmuls with matrices of low rank, a pair per slot, in one call per weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.cpu.library import load, target
from pallas_kernels.cpu.matmul import floats, integers

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int


def low_rank(
    x: Float[Array, "rows inputs"],
    slots: Int[Array, " rows"],
    down: Float[Array, "slots rank inputs"],
    up: Float[Array, "slots rank outputs"],
    ranges: Int[Array, "blocks 2"] | None = None,
    base: Float32[Array, "rows outputs"] | None = None,
) -> Float32[Array, "rows outputs"]:
    """base + x @ down[slot].T @ up[slot] for every row, summed in float32 from x as it is.

    Slots are numbered from 1 on; rows with slot 0 have none. Of each block of COLUMNS columns only
    the ranks in its range are read: the others must be zero there. A row has the same bits in any
    batch.
    """
    load()
    out = jax.ShapeDtypeStruct((x.shape[0], up.shape[2]), jnp.float32)
    call = jax.ffi.ffi_call(target("low_rank"), out)
    return call(x, slots, down, up, integers(ranges), floats(base))
