"""Token sampling by three Triton kernels: the best of each part of a row, the cuts, the draw.

The first and the last kernel divide each row among as many programs as fill a device. The search
for the cuts is one program per row: two or three passes over the row for each of top-k and top-p.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.launch import Launch, call_kernel
from pallas_kernels.shapes import next_power_of_two
from pallas_kernels.token_sampling.kernels import best_of_parts, draw_from_parts, find_cuts
from pallas_kernels.tuning import table, tuned


class Parts(NamedTuple):
    """How rows are divided: parts per row, and logits per part."""

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
    threshold, last = cuts(logits, best, temperature, top_k, top_p, min_p)
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
    """The highest logit of each part, f32[S, parts]; +inf where one is NaN."""
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
    logits: Array, best: Array, temperature: Array, top_k: Array, top_p: Array, min_p: Array
) -> tuple[Array, Array]:
    """Where top-k and top-p cut each row: an order key, and the last index equal to it, i32[S]."""
    rows, vocab = logits.shape
    sizes = tuned("token_sampling", kernel="search")
    numbers = jax.ShapeDtypeStruct((rows,), jnp.int32)
    constants = {**row_constants(best, vocab), "BLOCK": sizes["block"]}
    threshold, last, _ = call_kernel(
        find_cuts, logits, best, temperature, top_k, top_p, min_p,
        out=[numbers, numbers, jax.ShapeDtypeStruct(logits.shape, jnp.int32)],
        launch=Launch((rows,), constants, sizes["warps"]),
    )  # fmt: skip
    return threshold, last


def row_constants(best: Array, vocab: int) -> dict[str, Any]:
    """Constants of kernels that read the best logits of a row's parts."""
    parts = best.shape[1]
    return {"VOCAB": vocab, "PARTS": parts, "PADDED_PARTS": next_power_of_two(parts)}


def divide(rows: int, vocab: int, block: int) -> Parts:
    """Parts of whole blocks, enough of them to fill a device."""
    wanted = table("token_sampling")["parts"]
    blocks = -(-vocab // block)
    count = min(-(-wanted["programs"] // rows), wanted["most"], blocks)
    size = -(-blocks // count) * block
    return Parts(-(-vocab // size), size)
