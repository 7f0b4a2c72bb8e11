"""The selective scan of Mamba.

state = exp(dt * a) * state + dt * x b^T        out = state c + skip * x

A channel's state is a vector, each element with its own decay rate a. x and dt are scalars per
channel; b and c are vectors shared by all channels. dt, b and c are projections of the convolved x.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jengine.layers.norm import rms_norm
from jengine.layers.recurrent import StateView, short_convolution
from jengine.layers.state_scan import EXACT, scan_states

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float32


class SelectiveScan(NamedTuple):
    """One layer's recurrence. Tokens: {x [channels], dt [channels], b [size], c [size]}."""

    rate_logs: Array  # [channels, size]

    def prepared(self, tokens: dict[str, Array]) -> dict[str, Array]:
        return tokens

    def step(self, tokens: dict[str, Array], states: Array) -> tuple[Array, Array]:
        x, dt = tokens["x"], tokens["dt"]
        rates = -jnp.exp(self.rate_logs.astype(jnp.float32))
        decay = jnp.exp(dt[..., None] * rates[None])
        states = states * decay + (x * dt)[..., None] * tokens["b"][:, None, :]
        return jnp.einsum("rcn,rn->rc", states, tokens["c"], precision=EXACT), states

    def within(self, tokens: dict[str, Array]) -> dict[str, Array]:
        """Nothing is independent of the state: decay rates differ within it, so a tile is no
        matmul."""
        return tokens

    def across(self, tile: dict[str, Array], state: Array) -> tuple[Array, Array]:
        def one(state: Array, token: dict[str, Array]) -> tuple[Array, Array]:
            rows = {name: x[None] for name, x in token.items()}
            out, after = self.step(rows, state[None])
            return after[0], out[0]

        state, out = lax.scan(one, state, tile)
        return out, state


class SelectiveRule(NamedTuple):
    """Short convolution of x, its projection to dt, b and c, and the recurrence.

    States: the last inputs of the convolution, and the channels' states.
    """

    kernel: Array  # [width, channels]
    bias: Array | None
    select: Array  # [channels, rank + 2 * size]: projects to low-rank dt, b and c
    dt_weight: Array  # [rank, channels]
    dt_bias: Array  # [channels]
    rate_logs: Array  # [channels, size]
    skip: Array  # [channels]
    norms: tuple[Array, Array, Array] | None  # weights of the norms of low-rank dt, b and c
    eps: float

    def __call__(
        self, tokens: Array, states: tuple[Array, ...], layer: int, view: StateView
    ) -> tuple[Float32[Array, "tokens channels"], tuple[Array, ...]]:
        convolved, first = short_convolution(tokens, self.kernel, self.bias, states[0], layer, view)
        x = jax.nn.silu(convolved)
        recurrence = SelectiveScan(self.rate_logs)
        # Decode kernels need one decay per state; here it differs by element.
        out, second = scan_states(
            recurrence, self._selected(x), states[1], layer, view._replace(decoder=None)
        )
        return out + exact(self.skip)[None] * x, (first, second)

    def _selected(self, x: Float32[Array, "tokens channels"]) -> dict[str, Array]:
        """Project x to the recurrence's inputs dt, b and c."""
        made = jnp.einsum("tc,cs->ts", x, exact(self.select), precision=EXACT)
        rank, size = self.dt_weight.shape[0], self.rate_logs.shape[1]
        parts = made[:, :rank], made[:, rank : rank + size], made[:, rank + size :]
        if self.norms is not None:
            pairs = zip(parts, self.norms, strict=True)
            parts = tuple(rms_norm(part, weight, self.eps) for part, weight in pairs)
        short, b, c = parts
        dt = jnp.einsum("tr,rc->tc", short, exact(self.dt_weight), precision=EXACT)
        return {"x": x, "dt": jax.nn.softplus(dt + exact(self.dt_bias)[None]), "b": b, "c": c}


def exact(x: Array) -> Array:
    return x.astype(jnp.float32)
