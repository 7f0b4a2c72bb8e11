"""Multi-head latent attention over the paged cache, and among the new tokens of a step."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from pallas_kernels.choice import choose
from pallas_kernels.decode_attention import CASCADING
from pallas_kernels.latent_attention.chunks import chunk_attention as chunk_attention
from pallas_kernels.latent_attention.xla import latent_attention_xla

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Int, Shaped

IMPLEMENTATIONS = {
    "xla": latent_attention_xla,
    "cpu": latent_attention_xla,
    "triton": "pallas_kernels.latent_attention.triton:latent_attention_triton",
}


# Traced once for all layers of a step: the layer is a run-time scalar.
@partial(jax.jit, static_argnames=("rank", "scale", "dtype", "implementation"))
def latent_attention(
    q: Float[Array, "tokens heads width"],
    cache: Shaped[Array, "layers blocks block_size width"],
    layer: int | Int[Array, ""],
    tables: Int[Array, "rows pages"],
    starts: Int[Array, " rows"],
    begins: Int[Array, " tokens"],
    ends: Int[Array, " tokens"],
    *,
    rank: int,
    scale: float,
    dtype: DTypeLike = jnp.float32,
    counters: Int[Array, " counters"] | None = None,
    implementation: str | None = None,
) -> tuple[Array, ...]:
    """Attend absorbed queries to cached entries. Returns outputs [tokens, heads, rank] of type
    `dtype`, log-sum-exps [tokens, heads], and counters as `decode_attention` does.

    Each row has tokens / rows consecutive queries. Its entries are those of the blocks tables[row],
    the first at position starts[row]. A query attends to positions [begin, end); an empty range
    gives zero and log-sum-exp -inf. Scores are q @ entry * scale; values are the first `rank`
    numbers of the entries. Unused blocks and slots may hold anything, NaN included.
    """
    run = choose("latent_attention", implementation, IMPLEMENTATIONS)
    given: dict[str, Any] = {"rank": rank, "scale": scale, "dtype": jnp.dtype(dtype)}
    if implementation in CASCADING:
        given["counters"] = counters
    return run(q, cache, layer, tables, starts, begins, ends, **given)
