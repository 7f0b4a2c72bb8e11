"""Runs a linear recurrence over a step's tokens: decodes a row at a time, prompts a tile at a time.

Within a tile the recurrence is matmuls over its tokens; from tile to tile only the state is passed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array, lax

from jengine.layers.recurrent import StateView, read_states, wide, write_states

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Bool, Float32

# Of matmuls inside recurrences, also where a device would round their inputs.
EXACT = lax.Precision.HIGHEST


class Recurrence(Protocol):
    """A recurrence, with its parameters. Prepared tokens change nothing where all their arrays are
    zero."""

    def prepared(self, tokens: Any) -> Any:
        """What the recurrence reads of tokens [tokens, ...]: a tree of float32 arrays."""
        ...

    def step(self, tokens: Any, states: Array) -> tuple[Array, Array]:
        """One token of each row: results [rows, ...] and states [rows, ...]."""
        ...

    def within(self, tokens: Any) -> Any:
        """What tiles [P, tile, ...] compute without a state: a tree of arrays [P, ...]."""
        ...

    def across(self, tile: Any, state: Array) -> tuple[Array, Array]:
        """One tile's results [tile, ...] and its state after it, given the one before it."""
        ...


def scan_states(
    recurrence: Recurrence,
    tokens: Any,
    states: Float32[Array, "layers units ..."],
    layer: int,
    view: StateView,
) -> tuple[Float32[Array, "tokens ..."], Float32[Array, "layers units ..."]]:
    """The results of all tokens, and the states after them."""
    decodes = view.decodes
    prepared = recurrence.prepared(tokens)
    parts = []
    if decodes:
        own = view._replace(
            reads=view.reads[:decodes], writes=view.writes[:decodes], fresh=view.fresh[:decodes]
        )
        if view.decoder is None:
            out, states = _decode(recurrence, first(prepared, decodes), states, layer, own)
        else:
            out, states = view.decoder(recurrence, first(tokens, decodes), states, layer, own)
        parts.append(out)
    if len(view.lengths):
        tiles = jax.tree.map(lambda x: in_tiles(x[decodes:], view), prepared)
        out, states = _scan_tiles(recurrence, recurrence.within(tiles), states, layer, view)
        parts.append(out.reshape(-1, *out.shape[2:]))
    return jnp.concatenate(parts), states


def _decode(
    recurrence: Recurrence, prepared: Any, states: Array, layer: int, view: StateView
) -> tuple[Array, Array]:
    """One token of each row."""
    out, after = recurrence.step(prepared, read_states(states, layer, view))
    return out, write_states(states, layer, after, view.writes)


def first(tokens: Any, count: int) -> Any:
    """So many tokens of a tree."""
    return jax.tree.map(lambda x: x[:count], tokens)


def in_tiles(x: Array, view: StateView) -> Array:
    """[P, tile, ...], zero in padding."""
    tiles = x.reshape(-1, view.tile, *x.shape[1:])
    return jnp.where(wide(view.live(), tiles.ndim), tiles, 0.0)


def _scan_tiles(
    recurrence: Recurrence, tiles: Any, states: Array, layer: int, view: StateView
) -> tuple[Array, Array]:
    """One tile after the other. A chunk begins with the state of its row, and leaves it there."""
    prefills = view.decodes

    def one(carry: tuple[Array, Array], given: Any) -> tuple[tuple[Array, Array], Array]:
        states, state = carry
        tile, read, write, fresh, is_first = given
        found = jnp.where(fresh, 0.0, states[layer, read])
        out, state = recurrence.across(tile, jnp.where(is_first, found, state))
        return (states.at[layer, write].set(state, mode="drop"), state), out

    places = view.reads[prefills:], view.writes[prefills:], view.fresh[prefills:]
    begin = states, jnp.zeros(states.shape[2:], jnp.float32)
    (states, _), out = lax.scan(one, begin, (tiles, *places, view.firsts))
    return out, states


def causal_decay(log_decay: Float32[Array, "tiles tile heads"]) -> Float32[Array, "..."]:
    """The decay from each token s of a tile to each later or equal token t, [P, heads, t, s]; 0 for
    earlier ones. Each is summed by itself: as a difference of sums from the tile's begin it would
    have their rounding, which is large beside it where states decay quickly."""
    tokens = jnp.moveaxis(log_decay, 1, 2)[..., None]  # [P, heads, tile, 1]
    size = tokens.shape[-2]
    shape = (*tokens.shape[:-1], size)
    until = lower_triangle(size)
    after = jnp.broadcast_to(lower_triangle(size, strict=True), shape)
    summed = until.astype(jnp.float32), jnp.where(after, tokens, 0.0)
    between = jnp.einsum("tu,phus->phts", *summed, precision=EXACT)
    return jnp.exp(jnp.where(jnp.broadcast_to(until, shape), between, -jnp.inf))


def lower_triangle(size: int, *, strict: bool = False) -> Bool[Array, "size size"]:
    """True where the second index is at most the first, or below it."""
    return jnp.tril(jnp.ones((size, size), bool), -1 if strict else 0)
