"""Batched low-rank (LoRA) matmuls, one call per weight for all slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.cpu.library import ffi_call
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
    """base + x @ down[slot].T @ up[slot] per row, accumulated in float32.

    Slots are numbered from 1; rows with slot 0 have no adapter. `ranges` gives, per block of
    COLUMNS columns, the ranks to read; `up` must be zero outside them. A row's bits do not depend
    on the batch.
    """
    out = jax.ShapeDtypeStruct((x.shape[0], up.shape[2]), jnp.float32)
    call = ffi_call("low_rank", out)
    return call(x, slots, down, up, integers(ranges), floats(base))
