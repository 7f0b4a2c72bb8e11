"""Sampling by five Triton kernels: maxima of row parts, three for thresholds, and the draw.

All but one split rows into enough parts to fill the device; the bisection over the few candidates
has one program per row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.launch import Launch, call_kernel
from pallas_kernels.shapes import filling, next_power_of_two
from pallas_kernels.token_sampling.kernels.cuts import (
    PIVOTS,
    SUMS,
    add_up_parts,
    find_cuts,
    list_parts,
)
from pallas_kernels.token_sampling.kernels.draw import best_of_parts, draw_from_parts
from pallas_kernels.tuning import table, tuned


class Parts(NamedTuple):
    """Parts per row, and logits per part."""

    count: int
    size: int


def sample_tokens_triton(
    logits: Array, keys: Array, temperature: Array, top_k: Array, top_p: Array, min_p: Array
) -> Array:
    """See `sample_tokens`."""
    rows, vocab = logits.shape
    sizes = tuned("token_sampling", kernel="parts")
    parts = divide(rows, vocab, sizes["block"])
    best = best_of_parts_of(logits, parts)
    threshold, last = cuts(logits, best, parts, temperature, top_k, top_p, min_p)
    constants = {
        **row_constants(best, vocab), "PART": parts.size, "BLOCK": sizes["block"],
    }  # fmt: skip
    score, token = call_kernel(
        draw_from_parts, logits, best, keys, temperature, min_p, threshold, last,
        out=[
            jax.ShapeDtypeStruct(best.shape, jnp.float32),
            jax.ShapeDtypeStruct(best.shape, jnp.int32),
        ],
        launch=Launch((rows * parts.count,), constants, sizes["warps"]),
    )  # fmt: skip
    winner = score == jnp.max(score, axis=-1, keepdims=True)
    # All parts of a row that cannot be sampled give -1.
    return jnp.min(jnp.where(winner, token, jnp.where(token < 0, -1, vocab)), axis=-1)


def best_of_parts_of(logits: Array, parts: Parts) -> Array:
    """Maximum of each part, f32[S, parts]; +inf where one is NaN."""
    rows, vocab = logits.shape
    sizes = tuned("token_sampling", kernel="parts")
    constants = {
        "VOCAB": vocab, "PARTS": parts.count, "PART": parts.size, "BLOCK": sizes["block"],
    }  # fmt: skip
    (best,) = call_kernel(
        best_of_parts, logits,
        out=[jax.ShapeDtypeStruct((rows, parts.count), jnp.float32)],
        launch=Launch((rows * parts.count,), constants, sizes["warps"]),
    )  # fmt: skip
    return best


def cuts(
    logits: Array, best: Array, parts: Parts, temperature: Array, top_k: Array, top_p: Array,
    min_p: Array,
) -> tuple[Array, Array]:  # fmt: skip
    """Per row the top-k/top-p threshold as an order key, and the last kept index equal to it,
    i32[S]."""
    rows, vocab = logits.shape
    given = (logits, best, temperature, top_k, top_p, min_p)
    constants = {**row_constants(best, vocab), "PART": parts.size}
    numbers = jax.ShapeDtypeStruct((rows,), jnp.int32)

    def call(kernel: Any, *more: Array, programs: int, drop: str = "", **outputs: Any) -> Any:
        sizes = tuned("token_sampling", kernel=kernel.__name__)
        chosen = {name: value for name, value in constants.items() if name != drop}
        launch = Launch((programs,), {**chosen, "BLOCK": sizes["block"]}, sizes["warps"])
        return call_kernel(kernel, *given, *more, launch=launch, **outputs)

    kept = (rows, parts.count, PIVOTS.value, SUMS.value)
    sums, listed = call(
        add_up_parts, programs=rows * parts.count,
        out=[jax.ShapeDtypeStruct(kept, jnp.int32), numbers],
    )  # fmt: skip
    keys, listed = call(
        list_parts, sums, listed, programs=rows * parts.count,
        out=[jax.ShapeDtypeStruct(logits.shape, jnp.int32)], in_place=(len(given) + 1,),
    )  # fmt: skip
    return call(find_cuts, sums, listed, keys, programs=rows, drop="PART", out=[numbers, numbers])


def row_constants(best: Array, vocab: int) -> dict[str, Any]:
    parts = best.shape[1]
    return {"VOCAB": vocab, "PARTS": parts, "PADDED_PARTS": next_power_of_two(parts)}


def divide(rows: int, vocab: int, block: int) -> Parts:
    """Split rows into parts of whole blocks, enough of them to fill the device."""
    wanted = table("token_sampling")["parts"]
    blocks = -(-vocab // block)
    count = min(-(-filling(wanted["waves"]) // rows), wanted["most"], blocks)
    size = -(-blocks // count) * block
    return Parts(-(-vocab // size), size)
