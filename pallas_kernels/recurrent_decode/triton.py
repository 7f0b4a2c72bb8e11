"""Recurrent steps by Triton kernels: launch sizes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.launch import Launch, call_kernel
from pallas_kernels.recurrent_decode.kernels import delta_heads, state_space_heads
from pallas_kernels.shapes import as_scalar, next_power_of_two
from pallas_kernels.tuning import tuned


def delta_step_triton(
    states: Array,
    layer: int | Array,
    reads: Array,
    writes: Array,
    qkv: Array,
    dt: Array,
    beta: Array,
    rate_logs: Array,
    dt_bias: Array,
    eps: float,
) -> tuple[Array, Array]:
    """See `delta_step`."""
    _, units, heads, share, key, value = states.shape
    rows = len(reads)
    best = tuned("recurrent_decode", kernel="delta_heads", width=key)
    columns = min(best["lines"], next_power_of_two(value))
    tiles = -(-value // columns)
    constants = {
        "UNITS": units,
        "HEADS": heads,
        "SHARE": share,
        "KEY": key,
        "PADDED_KEY": next_power_of_two(key),
        "VALUE": value,
        "COLUMNS": columns,
        "TILES": tiles,
        "SCALE": key**-0.5,
        "EPS": eps,
    }
    out, states = call_kernel(
        delta_heads,
        states, as_scalar(layer), reads, writes, qkv, dt, beta, rate_logs, dt_bias,
        out=[jax.ShapeDtypeStruct((rows, heads, share, value), jnp.float32)],
        in_place=(0,),
        launch=Launch((rows * heads * share * tiles,), constants, best["warps"], num_stages=1),
    )  # fmt: skip
    return out, states


def state_space_step_triton(
    states: Array,
    layer: int | Array,
    reads: Array,
    writes: Array,
    x: Array,
    keys: Array,
    groups: Array,
    dt: Array,
    rate_logs: Array,
    dt_bias: Array,
    limits: tuple[float, float],
) -> tuple[Array, Array]:
    """See `state_space_step`."""
    _, units, heads, dim, size = states.shape
    rows = len(reads)
    best = tuned("recurrent_decode", kernel="state_space_heads", width=size)
    lines = min(best["lines"], next_power_of_two(dim))
    tiles = -(-dim // lines)
    constants = {
        "UNITS": units,
        "HEADS": heads,
        "GROUPS": keys.shape[2],
        "DIM": dim,
        "LINES": lines,
        "TILES": tiles,
        "SIZE": size,
        "PADDED_SIZE": next_power_of_two(size),
        "SHORTEST": limits[0],
        "LONGEST": limits[1],
    }
    out, states = call_kernel(
        state_space_heads,
        states, as_scalar(layer), reads, writes, x, keys, groups, dt, rate_logs, dt_bias,
        out=[jax.ShapeDtypeStruct((rows, heads, dim), jnp.float32)],
        in_place=(0,),
        launch=Launch((rows * heads * tiles,), constants, best["warps"], num_stages=1),
    )  # fmt: skip
    return out, states
