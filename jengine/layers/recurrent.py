"""Recurrent layers: which states a step reads and writes, and the short convolution.

A step's tokens are D decode rows (one token per row), then P tiles of prefill tokens. A tile
belongs to one row; the tiles of a chunk are consecutive and the last may be padded. States are
float32 [layers, units, ...], one unit per row. All reads precede the writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array, lax

from jengine.config import StateSpec

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Bool, Float, Float32, Int32

# Tile length of `dense_recurrent`.
DENSE_TILE = 64
NOWHERE = jnp.iinfo(jnp.int32).max


class StateView(NamedTuple):
    """State units (slots) that each decode token and prefill tile reads and writes."""

    reads: Array  # i32[D + P] unit of the state before the decode token, or before the tile's chunk
    writes: Array  # i32[D + P] unit for the state afterwards; NOWHERE: not kept
    fresh: Array  # bool[D + P] first tokens of a sequence: start from zeros
    firsts: Array  # bool[P] whether a tile is the first of its chunk
    lengths: Array  # i32[P] tokens of a tile, without padding
    decodes: int  # D
    tile: int  # tokens of a tile
    # Whether decode tokens may be consecutive tokens of one row, which must run in order.
    in_turn: bool = False
    # i32[R, 1 + K] decode tokens by row and turn (`drafted_states.draft_turns`); None: no drafts.
    turns: Array | None = None
    # Kernel that updates decode states in place; None: gather, compute, scatter.
    decoder: DecodeKernel | None = None

    def live(self) -> Bool[Array, "tiles tile"]:
        """Mask of prefill tokens, without padding."""
        return jnp.arange(self.tile)[None, :] < self.lengths[:, None]

    def one(self, index: Array) -> StateView:
        """View of a single decode token."""
        reads, writes, fresh = (
            lax.dynamic_slice_in_dim(x, index, 1) for x in (self.reads, self.writes, self.fresh)
        )
        none = self.firsts[:0], self.lengths[:0]
        return StateView(reads, writes, fresh, *none, 1, self.tile, decoder=self.decoder)


class DecodeKernel(Protocol):
    """A kernel for decode steps of a recurrence."""

    def __call__(
        self, recurrence: Any, tokens: Any, states: Array, layer: int, view: StateView
    ) -> tuple[Array, Array]:
        """Run one token per decode row, as passed to `scan_states`. Returns outputs and updated
        states."""
        ...


class RecurrenceRule(Protocol):
    """One layer's recurrence, with its parameters."""

    def __call__(
        self, tokens: Any, states: tuple[Array, ...], layer: int, view: StateView
    ) -> tuple[Array, tuple[Array, ...]]:
        """Run tokens [D + P * tile, ...]. Returns their outputs and the updated states."""
        ...


class RecurrentInputs(NamedTuple):
    """A recurrent layer's recurrence, its input tokens, and the specs of its states."""

    rule: RecurrenceRule
    tokens: Any  # a tree of arrays [*tokens, ...]
    states: tuple[StateSpec, ...]


def run_recurrent(
    inputs: RecurrentInputs, states: tuple[Array, ...], layer: int, view: StateView
) -> tuple[Array, tuple[Array, ...]]:
    """Run a layer's recurrence over a step's tokens; with `view.in_turn`, decode tokens one after
    another."""
    if not view.in_turn:
        return inputs.rule(inputs.tokens, states, layer, view)

    def one(states: tuple[Array, ...], index: Array) -> tuple[tuple[Array, ...], Array]:
        token = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, index, 1), inputs.tokens)
        out, states = inputs.rule(token, states, layer, view.one(index))
        return states, out[0]

    states, out = lax.scan(one, states, jnp.arange(view.decodes, dtype=jnp.int32))
    return out, states


def dense_recurrent(inputs: RecurrentInputs) -> Array:
    """Run the recurrence over whole sequences [batch, length, ...] from zero states."""
    batch, length = jax.tree.leaves(inputs.tokens)[0].shape[:2]
    tiles = -(-length // DENSE_TILE)
    missing = tiles * DENSE_TILE - length

    def flat(x: Array) -> Array:
        padded = jnp.pad(x, ((0, 0), (0, missing), *[(0, 0)] * (x.ndim - 2)))
        return padded.reshape(-1, *x.shape[2:])

    index = jnp.tile(jnp.arange(tiles, dtype=jnp.int32), batch)
    nothing = jnp.zeros_like(index)
    lengths = jnp.minimum(length - index * DENSE_TILE, DENSE_TILE)
    view = StateView(nothing, nothing + NOWHERE, index == 0, index == 0, lengths, 0, DENSE_TILE)
    states = tuple(jnp.zeros((1, 1, *state.shape), jnp.float32) for state in inputs.states)
    out, _ = inputs.rule(jax.tree.map(flat, inputs.tokens), states, 0, view)
    return out.reshape(batch, -1, *out.shape[1:])[:, :length]


def read_states(
    states: Float32[Array, "layers units ..."], layer: int, view: StateView
) -> Float32[Array, "places ..."]:
    """Gather the state before each decode token and each tile's chunk; zero for fresh rows."""
    # The barrier keeps XLA's GPU compiler from fusing this read with the write of new states, for
    # which it would copy the whole array: a fusion may not write in place what it reads.
    found = lax.optimization_barrier(states.at[layer, view.reads].get(mode="clip"))
    return jnp.where(wide(view.fresh, found.ndim), 0.0, found)


def write_states(
    states: Float32[Array, "layers units ..."],
    layer: int,
    new: Float32[Array, "places ..."],
    places: Int32[Array, " places"],
) -> Float32[Array, "layers units ..."]:
    """Scatter states into units `places`; out-of-range places are dropped."""
    return states.at[layer, places].set(new.astype(jnp.float32), mode="drop")


def short_convolution(
    x: Float32[Array, "tokens ..."],
    kernel: Float[Array, "width ..."],
    bias: Float[Array, "..."] | None,
    states: Float32[Array, "layers units before ..."],
    layer: int,
    view: StateView,
) -> tuple[Float32[Array, "tokens ..."], Float32[Array, "layers units before ..."]]:
    """Depthwise causal convolution over the last `width` tokens of a row. The state holds the row's
    last width - 1 inputs."""
    x, kernel, decodes = x.astype(jnp.float32), kernel.astype(jnp.float32), view.decodes
    before = read_states(states, layer, view)
    decoded, after = _convolved(jnp.concatenate([before[:decodes], x[:decodes, None]], 1), kernel)
    after = after[:, : kernel.shape[0] - 1]
    parts = [decoded[:, 0]]
    if len(view.lengths):
        tiles = x[decodes:].reshape(-1, view.tile, *x.shape[1:])
        last = tiles[:, view.tile - (kernel.shape[0] - 1) :]
        previous = jnp.concatenate([jnp.zeros_like(last[:1]), last[:-1]])
        given = jnp.where(wide(view.firsts, last.ndim), before[decodes:], previous)
        window = jnp.concatenate([given, tiles], axis=1)
        prefilled, _ = _convolved(window, kernel)
        parts.append(prefilled.reshape(-1, *x.shape[1:]))
        index = view.lengths[:, None] + jnp.arange(kernel.shape[0] - 1)[None, :]
        kept = jnp.take_along_axis(window, wide(index, window.ndim), axis=1)
        after = jnp.concatenate([after, kept])
    out = jnp.concatenate(parts)
    if bias is not None:
        out = out + bias.astype(jnp.float32)[None]
    return out, write_states(states, layer, after, view.writes)


def _convolved(window: Array, kernel: Array) -> tuple[Array, Array]:
    """Convolve windows [rows, tokens, ...]. Returns the sums, and the windows without their first
    token."""
    width = kernel.shape[0]
    count = window.shape[1] - width + 1
    parts = (window[:, tap : tap + count] * kernel[tap][None, None] for tap in range(width))
    return sum(parts, start=jnp.float32(0.0)), window[:, 1:]


def wide(x: Array, ndim: int) -> Array:
    """Append axes of length one up to `ndim`."""
    return x.reshape(*x.shape, *[1] * (ndim - x.ndim))
