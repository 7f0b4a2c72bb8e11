"""The gated delta rule: a head's state [key dim, value dim] maps keys to values. Per token the
state decays, then its value for the token's key moves by the fraction beta to the token's value.

    state = decay * state
    state = state + key (beta * (value - key^T state))^T        out = query^T state

Within a tile, each token's correction depends on those before it; one triangular solve gives them
all (the WY form).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jengine.layers.recurrent import StateView, short_convolution
from jengine.layers.state_scan import EXACT, causal_decay, lower_triangle, scan_states

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32

# Added to the squared length in L2 norms of q and k.
EPS = 1e-6


class DeltaRule(NamedTuple):
    """One layer's recurrence. Tokens: {qkv [heads, 2 * dim + share * value dim], dt and beta
    [heads, share]}; `share` value heads use one query and key head."""

    rate_logs: Array  # [heads, share]
    dt_bias: Array  # [heads, share]
    key_dim: int

    def prepared(self, tokens: dict[str, Array]) -> dict[str, Array]:
        """Split and normalise: q, k [heads, dim], v [heads, share, value dim], log_decay and beta
        [heads, share]."""
        q, k, v = jnp.split(tokens["qkv"], [self.key_dim, 2 * self.key_dim], axis=-1)
        share = self.rate_logs.shape[1]
        rates = -jnp.exp(self.rate_logs.astype(jnp.float32))
        bias = self.dt_bias.astype(jnp.float32)
        dt = jax.nn.softplus(tokens["dt"].astype(jnp.float32) + bias[None])
        return {
            "q": unit(q) * self.key_dim**-0.5,
            "k": unit(k),
            "v": v.reshape(*v.shape[:2], share, -1),
            "log_decay": dt * rates[None],
            "beta": jax.nn.sigmoid(tokens["beta"].astype(jnp.float32)),
        }

    def step(self, tokens: dict[str, Array], states: Array) -> tuple[Array, Array]:
        q, k = tokens["q"], tokens["k"]
        states = states * jnp.exp(tokens["log_decay"])[..., None, None]
        given = jnp.einsum("rhk,rhskv->rhsv", k, states, precision=EXACT)
        change = (tokens["v"] - given) * tokens["beta"][..., None]
        states = states + k[:, :, None, :, None] * change[:, :, :, None, :]
        return jnp.einsum("rhk,rhskv->rhsv", q, states, precision=EXACT), states

    def within(self, tokens: dict[str, Array]) -> dict[str, Array]:
        q, k, v, beta = (tokens[name] for name in ("q", "k", "v", "beta"))
        log_decay = tokens["log_decay"]  # [P, tile, heads, share]
        total = jnp.cumsum(log_decay, axis=1)
        decay = causal_decay(log_decay.reshape(*total.shape[:2], -1)).reshape(
            *total.shape[:1], *total.shape[2:], *[total.shape[1]] * 2
        )
        keys = jnp.einsum("pthk,puhk->phtu", k, k, precision=EXACT)[:, :, None]
        scores = jnp.einsum("pthk,puhk->phtu", q, k, precision=EXACT)[:, :, None] * decay
        shares = jnp.transpose(beta, (0, 2, 3, 1))[..., None]  # [P, heads, share, tile, 1]
        below = jnp.broadcast_to(lower_triangle(total.shape[1], strict=True), decay.shape)
        system = jnp.where(below, shares * keys * decay, 0.0)
        values = jnp.transpose(v, (0, 2, 3, 1, 4))  # [P, heads, share, tile, value]
        reads = jnp.transpose(k, (0, 2, 1, 3))[:, :, None]  # [P, heads, 1, tile, key]
        reads = reads * jnp.exp(jnp.transpose(total, (0, 2, 3, 1)))[..., None]
        right = jnp.concatenate([values, reads], axis=-1) * shares
        values, reads = jnp.split(solve_below(system, right), [v.shape[-1]], axis=-1)
        left = jnp.moveaxis(decay[..., -1, :], -1, 1)  # [P, tile, heads, share]
        kept = {"q": q, "k": k, "total": total, "left": left}
        return {**kept, "scores": scores, "v": values, "reads": reads}

    def across(self, tile: dict[str, Array], state: Array) -> tuple[Array, Array]:
        q, k, total = tile["q"], tile["k"], tile["total"]
        changes = tile["v"] - jnp.einsum("hstk,hskv->hstv", tile["reads"], state, precision=EXACT)
        out = jnp.einsum("thk,hskv->thsv", q, state, precision=EXACT) * jnp.exp(total)[..., None]
        out = out + jnp.einsum("hstu,hsuv->thsv", tile["scores"], changes, precision=EXACT)
        written = jnp.einsum("thk,ths,hstv->hskv", k, tile["left"], changes, precision=EXACT)
        return out, state * jnp.exp(total[-1])[..., None, None] + written


class DeltaRuleLayer(NamedTuple):
    """Short convolution of q, k and v, then the recurrence. Two states: the convolution's last
    inputs, and the heads' key-to-value matrices."""

    kernel: Array  # [width, heads, 2 * key dim + share * value dim]
    rate_logs: Array  # [heads, share]
    dt_bias: Array  # [heads, share]
    key_dim: int

    def __call__(
        self, tokens: dict[str, Array], states: tuple[Array, ...], layer: int, view: StateView
    ) -> tuple[Float32[Array, "tokens heads share dim"], tuple[Array, ...]]:
        inputs, before = tokens["qkv"], states[0]
        qkv, before = short_convolution(inputs, self.kernel, None, before, layer, view)
        recurrence = DeltaRule(self.rate_logs, self.dt_bias, self.key_dim)
        recurrent = {"qkv": jax.nn.silu(qkv), "dt": tokens["dt"], "beta": tokens["beta"]}
        out, maps = scan_states(recurrence, recurrent, states[1], layer, view)
        return out, (before, maps)


def unit(x: Float[Array, "*shape dim"]) -> Float[Array, "*shape dim"]:
    """L2-normalise the last axis."""
    return x * jax.lax.rsqrt(jnp.sum(jnp.square(x), axis=-1, keepdims=True) + EPS)


def solve_below(
    system: Float[Array, "*batch size size"], right: Float[Array, "*batch size width"]
) -> Float[Array, "*batch size width"]:
    """Solve (1 + system) x = right for a strictly lower triangular `system`.

    By matmuls: the inverse within blocks of one, two, four, ... tokens. JAX's triangular solve
    calls LAPACK on CPUs, which before jaxlib 0.11 waits in a thread of XLA's pool for other threads
    of the pool: solves on several devices or in several engines deadlocked.
    """
    size = system.shape[-1]
    index = jnp.arange(size)
    inverse = jnp.broadcast_to(jnp.eye(size, dtype=system.dtype), system.shape)
    for level in range((size - 1).bit_length()):
        block = index >> level
        # From the first half of each larger block to its second.
        joins = (block[:, None] == block[None] + 1) & (block[None] % 2 == 0)
        between = jnp.where(jnp.broadcast_to(joins, system.shape), system, 0.0)
        if level:
            between = jnp.matmul(inverse, between, precision=EXACT)
            between = jnp.matmul(between, inverse, precision=EXACT)
        inverse = inverse - between
    return jnp.matmul(inverse, right, precision=EXACT)
