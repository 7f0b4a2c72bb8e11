"""Decode attention by Triton, and prefill attention by kernels that share its query and output
arrays.

Slicing queries and concatenating outputs would cost three copies per layer.
"""

from __future__ import annotations

from typing import Any

from jax import Array

from pallas_kernels.choice import choose
from pallas_kernels.decode_attention.triton import decode_attention_triton
from pallas_kernels.prefill_attention import IMPLEMENTATIONS


def mixed_attention_triton(
    q: Array,
    cache: Array,
    layer: int | Array,
    decodes: tuple[Array, Array, Array],
    prefills: tuple[Array, Array, Array],
    of_tiles: dict[str, Any],
    *,
    reads_together: bool,
    counters: Array | None,
    prompts: str | None,
    **options: Any,
) -> tuple[Array, Array, Array]:
    """See `mixed_attention`; returns the log-sum-exp and counters too."""
    out, lse, counters = decode_attention_triton(
        q, cache, layer, *decodes, reads_together=reads_together, counters=counters, **options
    )
    if prefills[2].size:
        out, lse = choose("mixed_attention", prompts, IMPLEMENTATIONS)(
            q, cache, layer, *prefills, into=(out, lse), **options, **of_tiles
        )
    return out, lse, counters
