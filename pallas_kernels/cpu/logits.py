"""Row reductions over logits, and top-k, top-p and min-p filters built on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.cpu.library import ffi_call

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float32, Int32


def softmax_parts(
    x: Float32[Array, "rows width"],
) -> tuple[Float32[Array, " rows"], Float32[Array, " rows"]]:
    """Per row, the maximum and the sum of exp(x - maximum)."""
    call = ffi_call("softmax_parts", jax.ShapeDtypeStruct((x.shape[0], 2), jnp.float32))
    highest, total = jnp.unstack(call(x), axis=1)
    return highest, total


def cut_logits(
    logits: Float32[Array, "rows vocab"],
    top_k: Int32[Array, " rows"],
    top_p: Float32[Array, " rows"],
    min_p: Float32[Array, " rows"],
) -> Float32[Array, "rows vocab"]:
    """Set tokens cut by min-p, then top-k, then top-p of the remaining mass to -inf.

    Off: top_k <= 0, top_p >= 1, min_p <= 0. Ties keep the lowest indices.
    """
    call = ffi_call("cut_logits", jax.ShapeDtypeStruct(logits.shape, logits.dtype))
    return call(logits, top_k, top_p, min_p)
