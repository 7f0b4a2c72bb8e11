"""Initial values of a parameter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array


@dataclass(frozen=True)
class Initializer:
    """Normal distribution with `mean` and `stddev`; constant for stddev 0. Compared by value, so
    that models of one config have equal declarations."""

    mean: float = 0.0
    stddev: float = 0.0

    def __call__(self, key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        if self.stddev == 0.0:
            return jnp.full(shape, self.mean, dtype)
        return self.mean + jax.nn.initializers.normal(self.stddev)(key, shape, dtype)
