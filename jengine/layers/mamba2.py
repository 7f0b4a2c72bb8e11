"""The state space recurrence of Mamba-2.

    state = exp(dt * a) * state + dt * x b^T        out = state c + skip * x

A head's state is [dim, size]; x are its values, b its keys, c its queries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jengine.layers.recurrent import StateView, short_convolution
from jengine.layers.state_scan import EXACT, causal_decay, scan_states

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float32


class StateSpace(NamedTuple):
    """One layer's recurrence. Tokens: {x [heads, dim], keys [2, groups, size], dt [heads]}; `keys`
    is (b, c), shared by the heads of a group."""

    rate_logs: Array  # [heads]
    dt_bias: Array  # [heads]
    limits: tuple[float, float]  # clip range of dt

    def prepared(self, tokens: dict[str, Array]) -> dict[str, Array]:
        """Apply bias, softplus and clip to the time steps dt."""
        dt = jax.nn.softplus(tokens["dt"].astype(jnp.float32) + exact(self.dt_bias)[None])
        return {**tokens, "dt": jnp.clip(dt, *self.limits)}

    @property
    def rates(self) -> Float32[Array, " heads"]:
        """The decay rates a, negative."""
        return -jnp.exp(exact(self.rate_logs))

    def step(self, tokens: dict[str, Array], states: Array) -> tuple[Array, Array]:
        x, dt = tokens["x"], tokens["dt"]
        b, c = (self._of_heads(tokens["keys"][:, part]) for part in (0, 1))
        decay = jnp.exp(dt * self.rates[None])[..., None, None]
        states = states * decay + (x * dt[..., None])[..., None] * b[:, :, None]
        return jnp.einsum("rhps,rhs->rhp", states, c, precision=EXACT), states

    def within(self, tokens: dict[str, Array]) -> dict[str, Array]:
        x, dt = tokens["x"], tokens["dt"]
        b, c = tokens["keys"][:, :, 0], tokens["keys"][:, :, 1]  # [P, tile, groups, size]
        log_decay = dt * self.rates[None, None]  # [P, tile, heads]
        decay = causal_decay(log_decay)
        scores = jnp.einsum("ptgn,psgn->pgts", c, b, precision=EXACT)
        scores = jnp.repeat(scores, self._share(b.shape[2]), axis=1) * decay
        given = x * dt[..., None]
        out = jnp.einsum("phts,pshd->pthd", scores, given, precision=EXACT)
        left = jnp.moveaxis(decay[:, :, -1], 1, 2)[..., None]  # decay up to the end of the tile
        total = jnp.cumsum(log_decay, axis=1)
        return {"out": out, "given": given * left, "total": total, "b": b, "c": c}

    def across(self, tile: dict[str, Array], state: Array) -> tuple[Array, Array]:
        total = tile["total"]
        b, c = self._of_heads(tile["b"]), self._of_heads(tile["c"])
        out = jnp.einsum("thn,hdn->thd", c, state, precision=EXACT)
        out = tile["out"] + out * jnp.exp(total)[..., None]
        added = jnp.einsum("thd,thn->hdn", tile["given"], b, precision=EXACT)
        return out, state * jnp.exp(total[-1])[:, None, None] + added

    def _share(self, groups: int) -> int:
        return self.rate_logs.shape[0] // groups

    def _of_heads(self, x: Array) -> Array:
        """Repeat per-group values for the heads: [..., groups, size] -> [..., heads, size]."""
        return jnp.repeat(x, self._share(x.shape[-2]), axis=-2)


class StateSpaceRule(NamedTuple):
    """Short convolutions of x and of (b, c), then the recurrence. States: the last inputs of both
    convolutions, and the heads' states."""

    kernels: tuple[Array, Array]  # [width, heads, dim], [width, 2, groups, size]
    biases: tuple[Array | None, Array | None]
    rate_logs: Array  # [heads]
    dt_bias: Array  # [heads]
    skip: Array  # [heads]
    limits: tuple[float, float]  # clip range of dt

    def __call__(
        self, tokens: dict[str, Array], states: tuple[Array, ...], layer: int, view: StateView
    ) -> tuple[Float32[Array, "tokens heads dim"], tuple[Array, ...]]:
        convolved = []
        given = zip((tokens["x"], tokens["keys"]), self.kernels, self.biases, states, strict=False)
        for x, kernel, bias, state in given:
            out, state = short_convolution(x, kernel, bias, state, layer, view)
            convolved.append((jax.nn.silu(out), state))
        (x, first), (keys, second) = convolved
        recurrence = StateSpace(self.rate_logs, self.dt_bias, self.limits)
        inputs = {"x": x, "keys": keys, "dt": tokens["dt"]}
        out, third = scan_states(recurrence, inputs, states[2], layer, view)
        return out + exact(self.skip)[None, :, None] * x, (first, second, third)


def exact(x: Array) -> Array:
    return x.astype(jnp.float32)
