"""One small comparison of the kernels with XLA's attention, on the device that will run them.

There is no interpreter for these kernels, so a device is where a wrong number can first be seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pallas_kernels.choice import choose
from pallas_kernels.fa4.rules import PrefillCall, refused
from pallas_kernels.layout import KEYS, VALUES, cache_shape
from pallas_kernels.prefill_attention import IMPLEMENTATIONS
from pallas_kernels.prefill_attention.xla import prefill_attention_xla

# Relative to a token's largest output. Probabilities are rounded to the cache's dtype.
TOLERANCES = {"bfloat16": 2e-2, "float16": 4e-3}
# (cached tokens, new ones): a chunk after a cached prefix, one that begins its prompt, and one that
# is too short for the kernel. Rows end within a block of 128.
CHUNKS = ((200, 320), (0, 256), (3, 40))
TILE = 64
# Contents of slots after a row's last key; `rotate_and_write` leaves no NaN in values.
LEFT = {KEYS: np.nan, VALUES: 1.0}


class Trial(NamedTuple):
    """Geometry of attention layers, per device."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    window: int | None
    scale: float | None
    has_sinks: bool
    dtype: str
    soft_cap: float | None = None

    def __str__(self) -> str:
        window = "" if self.window is None else f", window {self.window}"
        return (
            f"{self.heads} heads of {self.head_dim}, {self.kv_heads} of keys, blocks of "
            f"{self.block_size}{window}{', sinks' * self.has_sinks}"
            + ("" if self.scale is None else f", scale {self.scale:g}")
            + ("" if self.dtype == "bfloat16" else f", {self.dtype}")
        )

    @property
    def rule(self) -> str | None:
        """Which rule sends these layers to Triton, or None."""
        dtype = jnp.dtype(self.dtype)
        return refused(
            PrefillCall(dtype, self.head_dim, self.block_size, self.soft_cap, has_ends=False)
        )


def difference(trial: Trial) -> str | None:
    """Description of the first result that differs from XLA's beyond rounding, or None."""
    return first_difference(errors(trial), TOLERANCES[trial.dtype])


def errors(trial: Trial, implementation: str = "fa4") -> dict[str, float]:
    """Largest errors of outputs and log-sum-exps, relative to a token's largest number."""
    arrays, options = case(trial)
    kernels = choose("prefill_attention", implementation, IMPLEMENTATIONS)
    expected = jax.jit(lambda *given: prefill_attention_xla(*given, **options))(*arrays)
    found = jax.jit(lambda *given: kernels(*given, **options))(*arrays)
    used = np.asarray(arrays[-1]) >= 0
    here, there = ([np.asarray(x, np.float32)[used] for x in given] for given in (found, expected))
    names = ("outputs", "log-sum-exps")
    return {
        name: largest_error(one, other) for name, one, other in zip(names, here, there, strict=True)
    }


def first_difference(found: Mapping[str, float], tolerance: float) -> str | None:
    """Description of the first error beyond rounding, or of a NaN; None if there is none."""
    for name, worst in found.items():
        if not worst <= tolerance:
            return f"{name} differ by {worst:.2g} of their size; {tolerance:g} is rounding"
    return None


def largest_error(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest error of a token, relative to the token's largest number; NaN if any value is."""
    inner = tuple(range(1, expected.ndim))
    return float((np.abs(found - expected).max(inner) / np.abs(expected).max(inner)).max())


def case(trial: Trial) -> tuple[tuple[Array, ...], dict[str, Any]]:
    """Arguments of prefill attention, with blocks in random order. Unused blocks hold NaN, slots
    after a row's last key what an earlier request may have left there."""
    rng = np.random.default_rng(0)
    ends = [cached + new for cached, new in CHUNKS]
    pages = -(-max(ends) // trial.block_size)
    blocks = len(CHUNKS) * pages + 1
    shape = cache_shape(2, blocks, trial.block_size, trial.kv_heads, trial.head_dim)
    order = rng.permutation(np.arange(1, blocks, dtype=np.int32)).reshape(len(CHUNKS), pages)
    cache = np.full(shape, np.nan, np.float32)
    tables, positions = [], []
    for table, end, (cached, new) in zip(order, ends, CHUNKS, strict=True):
        own = table[: -(-end // trial.block_size)]
        for plane, behind in LEFT.items():
            keys = rng.normal(size=(len(own) * trial.block_size, shape[4]))
            keys[end:] = behind
            cache[1, plane, own] = keys.reshape(len(own), *shape[3:])
        tiles = -(-new // TILE)
        tables += [table] * tiles
        positions += [*range(cached, end), *[-1] * (tiles * TILE - new)]
    q = rng.normal(size=(len(positions), trial.heads, trial.head_dim))
    sinks = jnp.asarray(rng.normal(size=trial.heads), jnp.float32) if trial.has_sinks else None
    options = {
        "head_dim": trial.head_dim, "window": trial.window, "scale": trial.scale,
        "soft_cap": None, "sinks": sinks, "dtype": jnp.dtype(trial.dtype),
    }  # fmt: skip
    arrays = (
        jnp.asarray(q, trial.dtype), jnp.asarray(cache, trial.dtype), jnp.int32(1),
        jnp.asarray(np.stack(tables)), jnp.zeros(len(tables), jnp.int32),
        jnp.asarray(positions, jnp.int32),
    )  # fmt: skip
    return arrays, options
