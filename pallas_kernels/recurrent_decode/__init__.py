"""One token of each row through a recurrence, whose states are updated where they are.

In: arrays of states, which unit each row reads and which it writes, and the row's token. Out: the
row's result, and the arrays. Only kernels are here: elsewhere a recurrence runs in XLA.
Must not know: how a row's units are found, nor what makes its token.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import jax
from jax import Array

from pallas_kernels.choice import choose

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int

# The implementations that have these kernels.
IN_PLACE = ("triton",)
DELTA = {"triton": "pallas_kernels.recurrent_decode.triton:delta_step_triton"}
STATE_SPACE = {"triton": "pallas_kernels.recurrent_decode.triton:state_space_step_triton"}


# Traced once for all layers of a step: the layer is a run-time scalar.
@partial(jax.jit, static_argnames=("eps", "implementation"))
def delta_step(
    states: Float32[Array, "layers units heads share key value"],
    layer: int | Int[Array, ""],
    reads: Int[Array, " rows"],
    writes: Int[Array, " rows"],
    qkv: Float[Array, "rows heads channels"],
    dt: Float[Array, "rows heads share"],
    beta: Float[Array, "rows heads share"],
    rate_logs: Float[Array, "heads share"],
    dt_bias: Float[Array, "heads share"],
    *,
    eps: float,
    implementation: str,
) -> tuple[
    Float32[Array, "rows heads share value"],
    Float32[Array, "layers units heads share key value"],
]:
    """The gated delta rule: results, and the states after them.

    A row's state is that of unit reads[row], or zero where that is negative, and goes to unit
    writes[row]; where that is no unit the row has no token, and its result is zero. What one row
    writes no other row may read or write. qkv: per head a query, a key and `share` values;
    queries and keys are brought to length one (`eps` is added to squared lengths), queries then
    divided by the root of their size. A state decays by exp(-exp(rate_log) * softplus(dt +
    dt_bias)), then goes sigmoid(beta) of the way to giving the value for the key.
    """
    run = choose("delta_step", implementation, DELTA)
    return run(states, layer, reads, writes, qkv, dt, beta, rate_logs, dt_bias, eps)


@partial(jax.jit, static_argnames=("limits", "implementation"))
def state_space_step(
    states: Float32[Array, "layers units heads dim size"],
    layer: int | Int[Array, ""],
    reads: Int[Array, " rows"],
    writes: Int[Array, " rows"],
    x: Float[Array, "rows heads dim"],
    keys: Float[Array, "rows 2 groups size"],
    groups: Int[Array, " heads"],
    dt: Float[Array, "rows heads"],
    rate_logs: Float[Array, " heads"],
    dt_bias: Float[Array, " heads"],
    *,
    limits: tuple[float, float],
    implementation: str,
) -> tuple[Float32[Array, "rows heads dim"], Float32[Array, "layers units heads dim size"]]:
    """The state space recurrence of Mamba-2: results, and the states after them.

    Units are those of `delta_step`. keys: b and c of each group; groups[head] is the group of a
    head. A step's size is softplus(dt + dt_bias) within the limits. A state decays by exp(size *
    -exp(rate_log)) and takes in size * x b^T; the result is the state times c.
    """
    run = choose("state_space_step", implementation, STATE_SPACE)
    return run(states, layer, reads, writes, x, keys, groups, dt, rate_logs, dt_bias, limits)
