"""Cache writes by Triton kernels."""

from __future__ import annotations

import math

from jax import Array

from pallas_kernels.cache_write.kernels import write_tokens
from pallas_kernels.launch import Launch, call_kernel
from pallas_kernels.layout import strides
from pallas_kernels.shapes import as_scalar, next_power_of_two


def write_cache_triton(cache: Array, layer: int | Array, k: Array, v: Array, slots: Array) -> Array:
    """See `write_cache`."""
    tokens, _, head_dim = k.shape
    width = math.prod(k.shape[1:])
    constants = {
        **strides(cache.shape, head_dim).constants(),
        "BLOCKS": cache.shape[2],
        "BLOCK_SIZE": cache.shape[3],
        "HEAD_DIM": head_dim,
        "WIDTH": width,
        "PADDED_WIDTH": next_power_of_two(width),
    }
    (cache,) = call_kernel(
        write_tokens,
        cache, as_scalar(layer), k.reshape(tokens, width), v.reshape(tokens, width), slots,
        in_place=(0,),
        launch=Launch(grid=(tokens,), constants=constants),
    )  # fmt: skip
    return cache
