"""Paged attention of a mixed step: decodes and prefill chunks in one array of queries."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from pallas_kernels.choice import by_distance, choose
from pallas_kernels.decode_attention import decode_attention
from pallas_kernels.prefill_attention import prefill_attention

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Int, Shaped

# Implementations that write decodes and prefills into one array; others concatenate.
JOINT = {"triton": "pallas_kernels.mixed_attention.triton:mixed_attention_triton"}


# Traced once for all layers of a step: the layer is a run-time scalar.
@partial(
    jax.jit,
    static_argnames=(
        "rows", "head_dim", "window", "scale", "soft_cap", "return_lse", "joined", "dtype",
        "reads_together", "implementation", "prompts",
    ),
)  # fmt: skip
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
    slopes: Float[Array, " heads"] | None = None,
    biases: Float[Array, "heads distances"] | None = None,
    return_lse: bool = False,
    runs: Int[Array, " firsts"] | None = None,
    joined: int = 1,
    ends: Int[Array, " tiles"] | None = None,
    dtype: DTypeLike = jnp.float32,
    reads_together: bool = False,
    counters: Int[Array, " counters"] | None = None,
    implementation: str | None = None,
    prompts: str | None = None,
) -> Float[Array, "tokens heads dim"] | tuple[Array, ...]:
    """Attend `rows` decode tokens, then tiles of prefill chunks. Returns outputs of type `dtype`.

    The first `rows` entries of `tables` and `starts` belong to decode tokens (position -1 for
    padding), the others to tiles; of `ends`, only the tiles' are read. Options are those of
    `decode_attention` and `prefill_attention`. `prompts`: the implementation for tiles if it
    differs ("fa4", with "triton" for decodes).
    """
    implementation, of_distance = by_distance(implementation, slopes, biases)
    options: dict[str, Any] = {
        "head_dim": head_dim, "window": window, "scale": scale, "soft_cap": soft_cap,
        "sinks": sinks, "dtype": jnp.dtype(dtype), **of_distance,
    }  # fmt: skip
    decodes = tables[:rows], starts[:rows], positions[:rows] + 1
    prefills = tables[rows:], starts[rows:], positions[rows:]
    of_tiles = {"runs": runs, "joined": joined, "ends": None if ends is None else ends[rows:]}
    if implementation in JOINT:
        run = choose("mixed_attention", implementation, JOINT)
        results = run(
            q, cache, layer, decodes, prefills, of_tiles, reads_together=reads_together,
            counters=counters, prompts=prompts or implementation, **options,
        )  # fmt: skip
        return results if return_lse else results[0]
    options |= {"implementation": implementation, "return_lse": True}
    results = decode_attention(
        q[:rows], cache, layer, *decodes, reads_together=reads_together, **options
    )
    if prefills[2].size:
        prefilled = prefill_attention(q[rows:], cache, layer, *prefills, **options, **of_tiles)
        (decoded, lse), (prefilled, other) = results, prefilled
        results = jnp.concatenate([decoded, prefilled]), jnp.concatenate([lse, other])
    return results if return_lse else results[0]
