"""Multi-head latent attention over the paged cache, and among the new tokens of a step."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from pallas_kernels.choice import choose
from pallas_kernels.latent_attention.chunks import chunk_attention as chunk_attention
from pallas_kernels.latent_attention.xla import latent_attention_xla

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int, Shaped

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
    implementation: str | None = None,
) -> tuple[Float[Array, "tokens heads rank"], Float32[Array, "tokens heads"]]:
    """Attend absorbed queries to cached entries. Returns outputs of type `dtype` and log-sum-exp.

    Each row has tokens / rows consecutive queries. Its entries are those of the blocks tables[row],
    the first at position starts[row]. A query attends to positions [begin, end); an empty range
    gives zero and log-sum-exp -inf. Scores are q @ entry * scale; values are the first `rank`
    numbers of the entries. Unused blocks and slots may hold anything, NaN included.
    """
    run = choose("latent_attention", implementation, IMPLEMENTATIONS)
    given = {"rank": rank, "scale": scale, "dtype": jnp.dtype(dtype)}
    return run(q, cache, layer, tables, starts, begins, ends, **given)
