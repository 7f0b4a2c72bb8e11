"""Recurrent layers (linear attention, SSM) in a step: finds, reads and writes each row's state.

A cache group of kind `recurrent` divides float32 arrays into units of one state
(`runner/step/group_arrays.py`), in the memory that all groups share. A block table names, for each
block, the unit with the state after its tokens (`kvcache.recurrent_group`): a step reads the unit
of the token before its first one and writes that of its last one.

Prefix caching: where a step ends at a multiple of `mamba_block_size` tokens, the next one writes to
another unit, and the old one stays as a snapshot; prefill chunks end there. A snapshot is found
from the next step on, since no row may read what another writes in the same step; a request whose
prefix is being computed waits for it (`scheduler/gates.py`).

Prompts run in tiles, decodes one token per row, on NVIDIA GPUs by one kernel per layer that updates
states in place (`runner/step/decoded_states.py`). A state cannot be rolled back, so drafts run on a
copy of it; after verification the accepted tokens run again on the state itself
(`layers/drafted_states.py`). In between only the inputs of the recurrence are kept, not a state per
draft.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jengine.layers.drafted_states import draft_turns, run_again, run_on_copies
from jengine.layers.recurrent import NOWHERE, RecurrentInputs, StateView, run_recurrent
from jengine.runner.step.batch import Batch
from jengine.runner.step.decoded_states import kernel_decoder
from jengine.runner.step.group_arrays import STATE_AXES
from jengine.runner.step.state import StepState
from jengine.runner.variants.buckets import Bucket, StepShapes
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
    """The arrays of a layer's group, each device with its heads."""
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
        """A layer has run on copies of its rows' states, if the step has drafts."""
        if view.turns is not None:
            self._layers.append(HeldLayer(group, layer, inputs, view))

    def settled(
        self, state: StepState, rows: Array, batch: Batch, placement: Placement
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
    batch: Batch, group: int, bucket: Bucket, shapes: StepShapes, placement: Placement
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
    batch: Batch, group: int, positions: Int32[Array, " tiles"], shapes: StepShapes
) -> Int32[Array, " tiles"]:
    """State unit after each of these positions, one per tile."""
    table = batch.tables[group]
    page = (positions - batch.table_starts[group]) // shapes.block_size
    page = jnp.clip(page, 0, table.shape[1] - 1)
    return jnp.take_along_axis(table, page[:, None], axis=1)[:, 0]
