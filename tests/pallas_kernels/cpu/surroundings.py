"""What surrounds a gated matmul: a norm before it, and bias, gate and residual after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import Array

from pallas_kernels.cpu.matmul import FusedNorm, Scales, matmul

INPUTS = 34


class Surroundings:
    """Of nine rows, drawn by `random`, that a weight [34, 2 * inner] takes."""

    def __init__(self, random: Callable[..., Array], inner: int) -> None:
        self.x, self.residual = random(9, INPUTS, seed=0), random(9, inner, seed=2)
        self.bias = random(2 * inner, seed=1)
        self.norm = FusedNorm("rms", random(INPUTS, seed=3), None, 1e-5)

    def run(self, packed: Array, scales: Scales) -> Array:
        """By the kernel, in one call."""
        return matmul(
            self.x, packed, self.bias.size, gate="halves", activation="silu", norm=self.norm,
            bias=self.bias, residual=self.residual, scales=scales,
        )  # fmt: skip

    def around(self, product: Any) -> np.ndarray:
        """By numpy, from the product of the normalized rows and the weight."""
        gate, rest = np.split(np.asarray(product, np.float64) + np.asarray(self.bias), 2, axis=1)
        return gate / (1 + np.exp(-gate)) * rest + np.asarray(self.residual)
