"""A layer of experts with random weights, run by any scheme."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jengine.layers.moe import Picked
from jengine.quantization.cpu import CpuWeights
from jengine.quantization.expert_adapters import ExpertAdapters
from jengine.quantization.scheme import Stored, WeightScheme, WeightShape

HIDDEN, INNER = 24, 16
OUT_AXES, IN_AXES = ("experts", "embed", "mlp", None), ("experts", "mlp", "embed")


@dataclass(frozen=True)
class Case:
    """Tokens, some of which are padding, and how many experts there are and each token picks."""

    tokens: int
    chosen: int
    experts: int
    padding: tuple[int, ...] = ()
    dtype: str = "float32"
    activation: str = "silu"
    biases: bool = False
    adapters: bool = False  # of two slots

    @property
    def tolerance(self) -> float:
        """Addends of bfloat16 weights are rounded."""
        return 1e-5 if self.dtype == "float32" else 1e-2


BIASED = Case(7, 2, 4, padding=(0, 5), activation="clamped_swiglu", biases=True)
ADAPTED = Case(9, 2, 4, padding=(0, 5), adapters=True)
CASES = [
    Case(7, 2, 4, padding=(0, 5)), Case(1, 3, 8), Case(40, 2, 3, (39,), "bfloat16"), BIASED, ADAPTED
]  # fmt: skip
RANK, SLOTS = 5, 2


def random(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def layer(scheme: WeightScheme, case: Case) -> jax.Array:
    """The layer's results."""
    shapes = (
        WeightShape((HIDDEN,), (INNER, 2), OUT_AXES, groups=case.experts),
        WeightShape((INNER,), (HIDDEN,), IN_AXES, groups=case.experts),
    )
    arrays = [random(*one.shape, seed=1).astype(case.dtype) for one in shapes]
    biases = [random(case.experts, *one.outputs, seed=3) for one in shapes]
    rng = np.random.default_rng(2)
    experts = np.argsort(rng.random((case.tokens, case.experts)), axis=1)[:, : case.chosen]
    slots = jnp.asarray(rng.integers(0, SLOTS + 1, case.tokens), jnp.int32)
    implementation = "cpu" if isinstance(scheme, CpuWeights) else "xla"
    adapters = [adapters_of(one, implementation) if case.adapters else None for one in shapes]
    live = np.arange(case.tokens)
    live[list(case.padding)] = -1

    @jax.jit
    def run(x: jax.Array, picked: Picked, *arrays: jax.Array) -> jax.Array:
        given = zip(shapes, arrays, biases, adapters, strict=True)
        stored = [Stored(s, scheme.prepare(s, {"weight": a}), bias if case.biases else None, added)
                  for s, a, bias, added in given]  # fmt: skip
        rows = jnp.asarray(live, jnp.int32)
        return scheme.mix_experts(*stored, x, picked, case.activation, rows)

    picked = Picked(
        jax.nn.softmax(random(*experts.shape)),
        jnp.asarray(experts, jnp.int32),
        slots if case.adapters else None,
    )
    return run(random(case.tokens, HIDDEN), picked, *arrays)


def adapters_of(weight: WeightShape, implementation: str) -> ExpertAdapters:
    """Random matrices for every slot and expert."""
    assert weight.groups is not None
    down = random(SLOTS, weight.groups, *weight.inputs, RANK, seed=4)
    up = random(SLOTS, weight.groups, RANK, *weight.outputs, seed=5)
    inputs, outputs = weight.axes[1:2], weight.axes[2:]
    axes = (None, "experts", *inputs, None), (None, "experts", None, *outputs)
    if implementation == "cpu":
        down = down.swapaxes(2, 3)
    return ExpertAdapters(down, up, axes, implementation)
