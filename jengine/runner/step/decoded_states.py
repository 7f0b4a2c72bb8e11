"""Decode steps of recurrent layers by kernels, sharded by head.

A kernel updates the states of all rows in place and in any order, so no row may read a state unit
that another writes in the same step. The cache guarantees that: a row reads either its own unit or
a prefix snapshot that no row writes.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from jengine.layers.delta_rule import EPS, DeltaRule
from jengine.layers.mamba2 import StateSpace
from jengine.layers.recurrent import StateView
from jengine.runner.step.group_arrays import STATE_AXES
from pallas_kernels.recurrent_decode import IN_PLACE, delta_step, state_space_step
from sharding.placement import Placement

# Logical axes of arrays by head, their tokens first, and of parameters.
OF_HEADS = (None, "heads", None)
EVERYWHERE = PartitionSpec()


def kernel_decoder(implementation: str | None, placement: Placement) -> KernelDecoder | None:
    """The kernels' decoder, or None where no kernel is available."""
    if implementation not in IN_PLACE:
        return None
    return KernelDecoder(implementation, placement)


class KernelDecoder(NamedTuple):
    """Runs the recurrences of `scan_states` by kernels."""

    implementation: str
    placement: Placement

    def __call__(
        self,
        recurrence: DeltaRule | StateSpace,
        tokens: dict[str, Array],
        states: Array,
        layer: int,
        view: StateView,
    ) -> tuple[Array, Array]:
        """Run one token per row. Returns outputs and states."""
        # One number for each row: the unit with its state, or -1 for none.
        places = jnp.where(view.fresh, -1, view.reads), view.writes
        if isinstance(recurrence, DeltaRule):
            return self._delta(recurrence, tokens, states, layer, places)
        return self._state_space(recurrence, tokens, states, layer, places)

    def _delta(
        self, rule: DeltaRule, tokens: dict[str, Array], states: Array, layer: int, places: Any
    ) -> tuple[Array, Array]:
        arrays = [tokens[name] for name in ("qkv", "dt", "beta")]
        axes: list[Any] = [OF_HEADS] * 3
        for parameter in (rule.rate_logs, rule.dt_bias):
            arrays.append(parameter)
            axes.append(("heads", None))
        out_shape = (*arrays[1].shape, states.shape[-1])
        step = partial(delta_step, eps=EPS, implementation=self.implementation)
        return self._run(step, states, layer, places, arrays, axes, ((*OF_HEADS, None), out_shape))

    def _state_space(
        self, rule: StateSpace, tokens: dict[str, Array], states: Array, layer: int, places: Any
    ) -> tuple[Array, Array]:
        x, keys = tokens["x"], tokens["keys"]
        heads = x.shape[1]
        # By head, so that a device knows the groups of those that it has.
        groups = jnp.arange(heads, dtype=jnp.int32) // (heads // keys.shape[2])
        arrays = [x, keys, groups, tokens["dt"], rule.rate_logs, rule.dt_bias]
        of_each = ("heads",)
        axes = [OF_HEADS, (None,) * 4, of_each, (None, *of_each), of_each, of_each]
        step = partial(state_space_step, limits=rule.limits, implementation=self.implementation)
        return self._run(step, states, layer, places, arrays, axes, (OF_HEADS, x.shape))

    def _run(
        self, step: Any, states: Array, layer: int, places: Any, arrays: list[Array],
        axes: list[Any], result: tuple[Any, tuple[int, ...]],
    ) -> tuple[Array, Array]:  # fmt: skip
        """Map over devices by head. `result`: axes and shape of the output."""
        placement = self.placement
        state_axes = (*STATE_AXES, "heads", *[None] * (states.ndim - 3))
        held = [placement.held(x, given) for x, given in zip(arrays, axes, strict=True)]
        specs = [placement.spec(given, x.shape) for x, given in zip(arrays, axes, strict=True)]
        state_spec = placement.spec(state_axes, states.shape)

        def own_heads(states: Array, reads: Array, writes: Array, *own: Array) -> Any:
            return step(states, layer, reads, writes, *own)

        run = placement.on_each_device(
            own_heads, (state_spec, EVERYWHERE, EVERYWHERE, *specs),
            (placement.spec(*result), state_spec),
        )  # fmt: skip
        return run(states, *places, *held)
