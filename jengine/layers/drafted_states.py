"""Recurrent layers under speculative decoding: outputs first, states once drafts are verified.

A recurrent state cannot be rolled back. A row's last token and its drafts therefore run in sequence
on a copy of its state; after verification the accepted tokens are run again on the state itself. In
between only the recurrence's inputs are kept, not a state per draft. Both runs take the decode
path, so their numbers are identical.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array, lax

from jengine.layers.recurrent import (
    NOWHERE,
    RecurrentInputs,
    StateView,
    read_states,
)

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Bool, Int32


def draft_turns(
    offsets: Int32[Array, " decodes"], rows: int, most: int
) -> Int32[Array, "rows turns"]:
    """Index of the decode token that each row runs on each turn: its last token, then up to `most`
    drafts; `decodes` (out of range) once a row has no more.

    `offsets` is 0 for a last token or trailing padding, j for the j-th draft.
    """
    decodes = len(offsets)
    row = jnp.cumsum(offsets == 0) - 1
    turns = jnp.full((rows, 1 + most), decodes, jnp.int32)
    return turns.at[row, offsets].set(jnp.arange(decodes, dtype=jnp.int32), mode="drop")


def run_on_copies(
    inputs: RecurrentInputs, states: tuple[Array, ...], layer: int, view: StateView
) -> tuple[Array, tuple[Array, ...]]:
    """Run all tokens, decodes on copies of the states. Returns the outputs, and the states, updated
    by prefill chunks only."""
    decodes, turns = view.decodes, view.turns
    assert turns is not None, "a step without drafts"
    places = _at_turns(view.writes[:decodes], turns)
    own = view._replace(reads=view.reads[turns[:, 0]], fresh=view.fresh[turns[:, 0]])
    copies = tuple(read_states(state, layer, own)[None] for state in states)
    units = jnp.arange(len(turns), dtype=jnp.int32)

    def turn(copies: tuple[Array, ...], index: Array | int) -> tuple[Array, tuple[Array, ...]]:
        runs = places[:, index] != NOWHERE
        now = _decodes(view, units, jnp.where(runs, units, NOWHERE), jnp.zeros_like(runs))
        return inputs.rule(_tokens_at(inputs, turns[:, index]), copies, 0, now)

    def next_turn(
        index: Array, carry: tuple[Array, tuple[Array, ...]]
    ) -> tuple[Array, tuple[Array, ...]]:
        out, copies = carry
        found, copies = turn(copies, index)
        return out.at[turns[:, index]].set(found, mode="drop"), copies

    first, copies = turn(copies, 0)
    out = jnp.zeros((decodes, *first.shape[1:]), first.dtype)
    out = out.at[turns[:, 0]].set(first, mode="drop")
    out, _ = lax.fori_loop(1, _last_turn(places != NOWHERE), next_turn, (out, copies))
    if not len(view.lengths):
        return out, states
    tokens = jax.tree.map(lambda x: x[decodes:], inputs.tokens)
    chunks = view._replace(
        reads=view.reads[decodes:], writes=view.writes[decodes:], fresh=view.fresh[decodes:],
        decodes=0,
    )  # fmt: skip
    prefilled, states = inputs.rule(tokens, states, layer, chunks)
    return jnp.concatenate([out, prefilled]), states


def run_again(
    inputs: RecurrentInputs,
    states: tuple[Array, ...],
    layer: int,
    view: StateView,
    counts: Bool[Array, " decodes"],
) -> tuple[Array, ...]:
    """Run the accepted decode tokens (`counts`) again and write their states."""
    turns = view.turns
    assert turns is not None, "a step without drafts"
    writes = jnp.where(counts, view.writes[: view.decodes], NOWHERE)
    places = _at_turns(writes, turns)

    def turn(index: Array, states: tuple[Array, ...]) -> tuple[Array, ...]:
        slots = turns[:, index]
        now = _decodes(view, view.reads[slots], places[:, index], view.fresh[slots])
        return inputs.rule(_tokens_at(inputs, slots), states, layer, now)[1]

    return lax.fori_loop(0, _last_turn(places != NOWHERE), turn, states)


def _at_turns(
    places: Int32[Array, " decodes"], turns: Int32[Array, "rows turns"]
) -> Int32[Array, "rows turns"]:
    """State units by row and turn; NOWHERE where a row has no token."""
    return places.at[turns].get(mode="fill", fill_value=NOWHERE)


def _last_turn(runs: Bool[Array, "rows turns"]) -> Int32[Array, ""]:
    """Number of turns until no row has tokens left."""
    count = runs.shape[1]
    return jnp.max(jnp.where(runs, jnp.arange(1, count + 1, dtype=jnp.int32)[None, :], 0))


def _tokens_at(inputs: RecurrentInputs, slots: Int32[Array, " rows"]) -> Array:
    return jax.tree.map(lambda x: x.at[slots].get(mode="clip"), inputs.tokens)


def _decodes(view: StateView, reads: Array, writes: Array, fresh: Array) -> StateView:
    """View with one decode token per row and no prefill tiles."""
    none = view.lengths[:0]
    return StateView(
        reads, writes, fresh, view.firsts[:0], none, len(reads), view.tile, decoder=view.decoder
    )
