"""Paged attention of a step of decodes and prefill chunks, from one array of queries for both."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from pallas_kernels.choice import choose
from pallas_kernels.decode_attention import decode_attention
from pallas_kernels.prefill_attention import prefill_attention

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Int, Shaped

# Implementations that write both results into one array. Others run one after the other.
JOINT = {"triton": "pallas_kernels.mixed_attention.triton:mixed_attention_triton"}


# Traced once for all layers of a step: the layer is a run-time scalar.
@partial(
    jax.jit,
    static_argnames=(
        "rows",
        "head_dim",
        "window",
        "scale",
        "soft_cap",
        "joined",
        "dtype",
        "implementation",
    ),
)
def mixed_attention(
    q: Float[Array, "tokens heads dim"],
    cache: Shaped[Array, "layers 2 blocks block_size width"],
    layer: int | Int[Array, ""],
    tables: Int[Array, "tiles pages"],
    starts: Int[Array, " tiles"],
    positions: Int[Array, " tokens"],
    *,
    rows: int,
    head_dim: int,
    window: int | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    sinks: Float[Array, " heads"] | None = None,
    runs: Int[Array, " firsts"] | None = None,
    joined: int = 1,
    dtype: DTypeLike = jnp.float32,
    implementation: str | None = None,
) -> Float[Array, "tokens heads dim"]:
    """Attend `rows` tokens that are decoded, then tiles of prefill chunks; the result is `dtype`.

    The first `rows` of tables and starts are those of the decoded tokens, whose positions are -1
    for padding; the others those of the tiles. Both are as `decode_attention` and
    `prefill_attention` take them, as are the options.
    """
    options: dict[str, Any] = {
        "head_dim": head_dim, "window": window, "scale": scale, "soft_cap": soft_cap,
        "sinks": sinks, "dtype": jnp.dtype(dtype),
    }  # fmt: skip
    decodes = tables[:rows], starts[:rows], positions[:rows] + 1
    prefills = tables[rows:], starts[rows:], positions[rows:]
    in_runs = {"runs": runs, "joined": joined}
    if implementation in JOINT:
        run = choose("mixed_attention", implementation, JOINT)
        return run(q, cache, layer, decodes, prefills, in_runs, **options)
    options["implementation"] = implementation
    decoded = decode_attention(q[:rows], cache, layer, *decodes, **options)
    if not prefills[2].size:
        return decoded
    prefilled = prefill_attention(q[rows:], cache, layer, *prefills, **options, **in_runs)
    return jnp.concatenate([decoded, prefilled])
