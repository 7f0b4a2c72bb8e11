"""Stage: achievable memory bandwidth and matmul throughput of this device."""

from __future__ import annotations

import argparse
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from jengine.bench.gpu.case_inputs import random_normal
from jengine.bench.gpu.cases import sizes
from jengine.bench.gpu.clock import seconds_of
from jengine.bench.gpu.part import StageResult, run_stage

CALLS = 8
ROW = 4096


def measure(part: StageResult, args: argparse.Namespace) -> None:
    """One line for a copy, one for reading alone, and one per dtype for matmuls."""
    chosen = sizes(dry_run=args.dry_run)
    x = jnp.ones(chosen.copy_bytes // 2, jnp.bfloat16)
    timed = partial(seconds_of, repeats=chosen.repeats)
    took = timed(jax.jit(lambda x: x * jnp.bfloat16(1.5)), x)
    bandwidth = 2 * x.nbytes / took.best / 1e9
    part.add(what="copy", bytes=2 * x.nbytes, gb_s=round(bandwidth, 1), **took.as_microseconds())
    rows = x.reshape(-1, ROW)
    took = timed(jax.jit(lambda x: x.astype(jnp.float32).sum(axis=1)), rows)
    bandwidth = x.nbytes / took.best / 1e9
    part.add(what="reading", bytes=x.nbytes, gb_s=round(bandwidth, 1), **took.as_microseconds())
    for dtype in part.in_time(("bfloat16", "float16")):
        # Random numbers take more power than equal ones, which may lower the device's clock. Scaled
        # so that repeated matmuls neither grow nor vanish.
        scale = jnp.asarray(chosen.product**-0.5, dtype)
        a = random_normal((chosen.product, chosen.product), dtype, 0) * scale
        took = timed(jax.jit(products), a, a, calls=CALLS)
        rate = 2 * chosen.product**3 / took.best / 1e12
        part.add(
            what=f"product {dtype}", size=chosen.product, tflop_s=round(rate, 1),
            **took.as_microseconds(),
        )  # fmt: skip


def products(a: Array, b: Array) -> Array:
    """A chain of dependent matmuls."""
    for _ in range(CALLS):
        a = a @ b
    return a


if __name__ == "__main__":
    run_stage(measure)
