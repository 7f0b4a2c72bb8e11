"""Recurrent layers (linear attention, SSM) in a step: finds, reads and writes each row's state.

A cache group of kind `recurrent` divides float32 arrays into units of one state
(`runner/step/group_arrays.py`). The block table names, per block, the unit with the state after its
tokens (`kvcache.recurrent_group`): a step reads the unit of the token before its first one and
writes that of its last one.

Prefix caching: after a multiple of `mamba_block_size` tokens, where prefill chunks end, the next
step writes to another unit, and the old one stays as a snapshot. A snapshot can be hit from the
next step on, since no row may read what another writes in the same step; a request whose prefix is
being computed waits for it (`scheduler/gates.py`).

Prompts run in tiles, decodes one token per row, on NVIDIA GPUs by one kernel per layer that updates
states in place (`KernelDecoder`). A state cannot be rolled back, so drafts run on a copy; after
verification the accepted tokens run again on the state itself (`layers/drafted_states.py`). Only
the inputs of the recurrence are kept for that, not a state per draft.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from jengine.layers.delta_rule import EPS, DeltaRule
from jengine.layers.drafted_states import draft_turns, run_again, run_on_copies
from jengine.layers.mamba2 import StateSpace
from jengine.layers.recurrent import NOWHERE, RecurrentInputs, StateView, run_recurrent
from jengine.runner.step.batch import StepBatch
from jengine.runner.step.group_arrays import STATE_AXES
from jengine.runner.step.state import StepState
from jengine.runner.variants.buckets import Bucket, StepShapes
from pallas_kernels.recurrent_decode import IN_PLACE, delta_step, state_space_step
from sharding.placement import Placement

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Int32


def recurrent_mixer(
    states: tuple[Array, ...],
    layer: int,
    inputs: RecurrentInputs,
    view: StateView,
    placement: Placement,
) -> tuple[Array, tuple[Array, ...]]:
    """Run a layer's recurrence and write the states, sharded by head; with drafts, decode states
    are deferred (see `HeldStates`)."""
    run = run_recurrent if view.turns is None else run_on_copies
    mixed, new = run(inputs, states, layer, view)
    return mixed, placed_states(new, inputs, placement)


def placed_states(
    states: tuple[Array, ...], inputs: RecurrentInputs, placement: Placement
) -> tuple[Array, ...]:
    """Constrain a group's state arrays to their sharding by head."""
    return tuple(
        placement.held(array, (*STATE_AXES, *state.axes))
        for array, state in zip(states, inputs.states, strict=True)
    )


class HeldLayer(NamedTuple):
    """Inputs of a recurrent layer, kept until drafts are verified."""

    group: int
    layer: int  # in its group
    inputs: RecurrentInputs
    view: StateView


class HeldStates:
    """Recurrent layers of a step with drafts, whose states wait for verification."""

    def __init__(self) -> None:
        self._layers: list[HeldLayer] = []

    def hold(self, group: int, layer: int, inputs: RecurrentInputs, view: StateView) -> None:
        """Register a layer, which has run on copies of its rows' states, if the step has drafts."""
        if view.turns is not None:
            self._layers.append(HeldLayer(group, layer, inputs, view))

    def settled(
        self, state: StepState, rows: Array, batch: StepBatch, placement: Placement
    ) -> StepState:
        """State after the accepted tokens: those before each row's new length."""
        if not self._layers:
            return state
        with jax.named_scope("settle"):
            lengths = state.lengths.at[rows].get(mode="fill", fill_value=0)
            positions = batch.positions[: len(rows)]
            counts = (positions >= 0) & (positions < lengths)
            caches = list(state.caches)
            for group, layer, inputs, view in self._layers:
                found = run_again(inputs, caches[group], layer, view, counts)
                caches[group] = placed_states(found, inputs, placement)
        return state._replace(caches=tuple(caches))


def state_view(
    batch: StepBatch, group: int, bucket: Bucket, shapes: StepShapes, placement: Placement
) -> StateView:
    """The step's view of a recurrent group."""
    decodes, tile = bucket.decode_rows, shapes.prefill_tile
    tiles = batch.positions[decodes:].reshape(-1, tile)
    lengths = jnp.sum(tiles >= 0, axis=1, dtype=jnp.int32)
    first = jnp.concatenate([batch.positions[:decodes], tiles[:, 0]])
    last = first + jnp.concatenate([jnp.ones(decodes, jnp.int32), lengths]) - 1
    changes = batch.tile_rows[1:] != batch.tile_rows[:-1]
    edge = jnp.ones(min(len(lengths), 1), bool)
    ends = jnp.concatenate([jnp.ones(decodes, bool), changes, edge])
    writes = jnp.where(ends & (first >= 0), _units(batch, group, last, shapes), NOWHERE)
    turns = None
    if batch.offsets is not None:
        turns = draft_turns(batch.offsets, min(decodes, shapes.max_rows), shapes.most_drafts)
    return StateView(
        reads=_units(batch, group, first - 1, shapes),
        writes=writes,
        fresh=first <= 0,
        firsts=jnp.concatenate([edge, changes]),
        lengths=lengths,
        decodes=decodes,
        tile=tile,
        in_turn=shapes.one_segment,
        turns=turns,
        decoder=kernel_decoder(shapes.attention, placement),
    )


def _units(
    batch: StepBatch, group: int, positions: Int32[Array, " tiles"], shapes: StepShapes
) -> Int32[Array, " tiles"]:
    """State unit after each of these positions, one per tile."""
    table = batch.tables[group]
    page = (positions - batch.table_starts[group]) // shapes.block_size
    page = jnp.clip(page, 0, table.shape[1] - 1)
    return jnp.take_along_axis(table, page[:, None], axis=1)[:, 0]


# A kernel updates the states of all rows in place and in any order, so no row may read a state unit
# that another writes in the same step. The cache guarantees that: a row reads either its own unit
# or a prefix snapshot that no row writes.

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
        # Units to read (-1: zero state) and to write, per row.
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
        # The group of each head, sharded by head.
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
