"""Single-token steps of recurrent layers, updating states in place.

In: state arrays, the unit (state slot) that each row reads and writes, and the row's token. Out:
outputs and states. Triton only; elsewhere recurrences run in XLA. Must not know how units are
assigned.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import jax
from jax import Array

from pallas_kernels.choice import choose

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int

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
    """One step of the gated delta rule. Returns outputs and states.

    A row reads unit reads[row] (zero state if negative) and writes unit writes[row]; if that is out
    of range the row is empty and its output zero. No row may read or write a unit that another row
    writes. `qkv` holds a query, a key and `share` values per head; q and k are L2-normalised (`eps`
    added to squared lengths) and q divided by the root of its size. States decay by
    exp(-exp(rate_log) * softplus(dt + dt_bias)), then move by sigmoid(beta) toward mapping the key
    to the value.
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
    """One step of the Mamba-2 recurrence. Returns outputs and states.

    Units are as in `delta_step`. `keys` are b and c per group; groups[head] is a head's group. The
    time step is softplus(dt + dt_bias) clipped to `limits`. States decay by exp(step *
    -exp(rate_log)) and add step * x b^T; the output is the state times c.
    """
    run = choose("state_space_step", implementation, STATE_SPACE)
    return run(states, layer, reads, writes, x, keys, groups, dt, rate_logs, dt_bias, limits)
