"""Runs a linear recurrence over a step: decode rows one token each, prefill in tiles (chunkwise
form).

Within a tile the recurrence is matmuls; only the state passes from tile to tile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array, lax

from jengine.layers.recurrent import StateView, read_states, wide, write_states

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Bool, Float32

# Precision of matmuls in recurrences, also where the device would default to less.
EXACT = lax.Precision.HIGHEST


class Recurrence(Protocol):
    """A recurrence and its parameters. Tokens whose prepared arrays are all zero must leave the
    state unchanged: padding relies on it."""

    def prepared(self, tokens: Any) -> Any:
        """Compute the recurrence's float32 inputs from tokens [tokens, ...]."""
        ...

    def step(self, tokens: Any, states: Array) -> tuple[Array, Array]:
        """Advance each row by one token. Returns outputs [rows, ...] and states [rows, ...]."""
        ...

    def within(self, tokens: Any) -> Any:
        """Compute what does not depend on the state, for all tiles [P, tile, ...] at once."""
        ...

    def across(self, tile: Any, state: Array) -> tuple[Array, Array]:
        """Given the state before a tile, return its outputs [tile, ...] and the state after it."""
        ...


def scan_states(
    recurrence: Recurrence,
    tokens: Any,
    states: Float32[Array, "layers units ..."],
    layer: int,
    view: StateView,
) -> tuple[Float32[Array, "tokens ..."], Float32[Array, "layers units ..."]]:
    """Run a step's tokens. Returns outputs and updated states."""
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
    out, after = recurrence.step(prepared, read_states(states, layer, view))
    return out, write_states(states, layer, after, view.writes)


def first(tokens: Any, count: int) -> Any:
    return jax.tree.map(lambda x: x[:count], tokens)


def in_tiles(x: Array, view: StateView) -> Array:
    """Reshape prefill tokens to [P, tile, ...], with padding zeroed."""
    tiles = x.reshape(-1, view.tile, *x.shape[1:])
    return jnp.where(wide(view.live(), tiles.ndim), tiles, 0.0)


def _scan_tiles(
    recurrence: Recurrence, tiles: Any, states: Array, layer: int, view: StateView
) -> tuple[Array, Array]:
    """Scan tiles in order; a chunk starts from its row's state and writes it back at its end."""
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
    """Decay from token s to each token t >= s of a tile, [P, heads, t, s]; 0 for t < s.

    Each log decay is summed directly: a difference of prefix sums has the rounding error of the
    prefix, large beside the result where states decay quickly.
    """
    tokens = jnp.moveaxis(log_decay, 1, 2)[..., None]  # [P, heads, tile, 1]
    size = tokens.shape[-2]
    shape = (*tokens.shape[:-1], size)
    until = lower_triangle(size)
    after = jnp.broadcast_to(lower_triangle(size, strict=True), shape)
    summed = until.astype(jnp.float32), jnp.where(after, tokens, 0.0)
    between = jnp.einsum("tu,phus->phts", *summed, precision=EXACT)
    return jnp.exp(jnp.where(jnp.broadcast_to(until, shape), between, -jnp.inf))


def lower_triangle(size: int, *, strict: bool = False) -> Bool[Array, "size size"]:
    return jnp.tril(jnp.ones((size, size), bool), -1 if strict else 0)
