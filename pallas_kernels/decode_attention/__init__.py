"""Paged attention for one query token per row."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from pallas_kernels.choice import by_distance, choose
from pallas_kernels.decode_attention.context_parts import zero_counters as zero_counters
from pallas_kernels.decode_attention.teams import least_shared as least_shared
from pallas_kernels.decode_attention.teams import rows_of_a_team as rows_of_a_team
from pallas_kernels.decode_attention.teams import shared_multiple as shared_multiple
from pallas_kernels.decode_attention.xla import decode_attention_xla

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Int, Shaped

IMPLEMENTATIONS = {
    "xla": decode_attention_xla,
    "cpu": "pallas_kernels.cpu.attention:decode_attention_cpu",
    "triton": "pallas_kernels.decode_attention.triton:decode_attention_triton",
}

# Implementations that can read a prefix shared by rows once (cascade attention), and that take
# `counters` of finished parts.
CASCADING = ("triton",)


# Traced once for all layers of a step: the layer is a run-time scalar.
@partial(
    jax.jit,
    static_argnames=(
        "head_dim", "window", "scale", "soft_cap", "return_lse", "dtype", "reads_together",
        "implementation",
    ),
)  # fmt: skip
def decode_attention(
    q: Float[Array, "rows heads dim"],
    cache: Shaped[Array, "layers 2 blocks block_size width"],
    layer: int | Int[Array, ""],
    tables: Int[Array, "rows pages"],
    starts: Int[Array, " rows"],
    lengths: Int[Array, " rows"],
    *,
    head_dim: int,
    window: int | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    sinks: Float[Array, " heads"] | None = None,
    slopes: Float[Array, " heads"] | None = None,
    biases: Float[Array, "heads distances"] | None = None,
    return_lse: bool = False,
    dtype: DTypeLike = jnp.float32,
    reads_together: bool = False,
    counters: Int[Array, " counters"] | None = None,
    implementation: str | None = None,
) -> Float[Array, "rows heads dim"] | tuple[Array, ...]:
    """Attend one query per row to the row's cached tokens. Returns outputs of type `dtype`.

    `tables` hold block ids; the first block of row r begins at position starts[r]. `lengths` count
    the attended tokens, the query included; 0 marks padding, whose output is zero and which comes
    last. Unused blocks and slots may hold anything, NaN included.

    Scores are q @ k * scale (default head_dim ** -0.5), then cap * tanh(score / cap) with a soft
    cap. A sink is an extra logit per head without a value. A slope lowers a head's scores per token
    of distance (ALiBi). biases[head, n] is added for keys n tokens before the query, the last one
    for all further ones.

    `return_lse` adds the float32 log-sum-exp [rows, heads] of the scores, sinks included, -inf for
    padding; and, from CASCADING implementations, the `counters` to pass to the next call. This
    orders the calls: no two may use one array at a time.
    `reads_together` allows a kernel to read blocks shared by neighbouring rows once; a row's bits
    then depend on its neighbours.
    """
    implementation, of_distance = by_distance(implementation, slopes, biases)
    run = choose("decode_attention", implementation, IMPLEMENTATIONS)
    given: dict[str, Any] = {
        "head_dim": head_dim, "window": window, "scale": scale, "soft_cap": soft_cap,
        "sinks": sinks, "dtype": jnp.dtype(dtype), **of_distance,
    }  # fmt: skip
    if implementation in CASCADING:
        given |= {"reads_together": reads_together, "counters": counters}
    found = run(q, cache, layer, tables, starts, lengths, **given)
    return found if return_lse else found[0]
