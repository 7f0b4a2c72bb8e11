"""Paged attention for prefill chunks of any length, after any cached prefix."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from pallas_kernels.choice import by_distance, choose
from pallas_kernels.prefill_attention.xla import prefill_attention_xla
from pallas_kernels.shapes import next_power_of_two

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Int, Shaped

IMPLEMENTATIONS = {
    "xla": prefill_attention_xla,
    "cpu": "pallas_kernels.cpu.attention:prefill_attention_cpu",
    "triton": "pallas_kernels.prefill_attention.triton:prefill_attention_triton",
    "fa4": "pallas_kernels.prefill_attention.fa4:prefill_attention_fa4",
}

# Implementations that join tiles to runs; others take tiles one by one.
JOINING = ("triton", "fa4")
# Query rows (tokens x query heads of a KV head) of a GPU program, the largest matmul tile.
QUERIES = 128


def tokens_of_tile(group: int) -> int:
    """Tokens of the shortest tile that fills a program, for this query group size."""
    return max(QUERIES // next_power_of_two(group), 1)


# Traced once for all layers of a step: the layer is a run-time scalar.
@partial(
    jax.jit,
    static_argnames=(
        "head_dim", "window", "scale", "soft_cap", "return_lse", "joined", "dtype",
        "implementation",
    ),
)  # fmt: skip
def prefill_attention(
    q: Float[Array, "tokens heads dim"],
    cache: Shaped[Array, "layers 2 blocks block_size width"],
    layer: int | Int[Array, ""],
    tables: Int[Array, "tiles pages"],
    starts: Int[Array, " tiles"],
    positions: Int[Array, " tokens"],
    *,
    head_dim: int,
    window: int | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    sinks: Float[Array, " heads"] | None = None,
    slopes: Float[Array, " heads"] | None = None,
    biases: Float[Array, "heads distances"] | None = None,
    return_lse: bool = False,
    runs: Int[Array, " firsts"] | None = None,
    joined: int = 1,
    ends: Int[Array, " tiles"] | None = None,
    dtype: DTypeLike = jnp.float32,
    implementation: str | None = None,
) -> (
    Float[Array, "tokens heads dim"]
    | tuple[Float[Array, "tokens heads dim"], Float[Array, "tokens heads"]]
):
    """Attend queries causally to cached tokens. Returns outputs of type `dtype`.

    Queries come in tiles of tokens / tiles tokens. A tile belongs to one row, with blocks
    tables[tile], the first at position starts[tile]. Position -1 marks padding at the end of a
    tile, which gives zeros; all-padding tiles come last. Options are those of `decode_attention`.

    `ends` limits the keys of each tile's row; positions may exceed it, for queries that attend
    ahead (bidirectional spans). Each query must see a key.

    A kernel may join consecutive tiles of one row to read its keys once: run r of `runs` holds
    tiles runs[r] up to runs[r + 1], at most `joined`. Every tile is in a run; a run reads the
    blocks of its first tile.
    """
    implementation, of_distance = by_distance(implementation, slopes, biases)
    run = choose("prefill_attention", implementation, IMPLEMENTATIONS)
    given: dict[str, Any] = {
        "head_dim": head_dim, "window": window, "scale": scale, "soft_cap": soft_cap,
        "sinks": sinks, "dtype": jnp.dtype(dtype), "ends": ends, **of_distance,
    }  # fmt: skip
    if implementation in JOINING:
        given |= {"runs": runs, "joined": joined}
    out, lse = run(q, cache, layer, tables, starts, positions, **given)
    return (out, lse) if return_lse else out
