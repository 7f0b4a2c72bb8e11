"""Verifies draft tokens: accepts those whose whole prefix was sampled as drafted.

A row's slots are consecutive: the first follows the row's last token, each other one a draft. A
slot is accepted if the drafts up to it equal the tokens sampled before them. As a token depends
only on logits, seed and position, the accepted tokens are those of plain decoding. Must not know:
logits, how tokens are sampled, where drafts come from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Bool, Int32


class Drafted(NamedTuple):
    """The drafts that a step ran, per slot. K: the maximum drafts per row."""

    offsets: Array  # i32[S] 0: after the row's last token; j: after its j-th draft
    # i32[S, K] the drafts up to a slot, the last first: [s, d] is d + 1 positions before the token
    # to be sampled; -1: no draft
    earlier: Array


def drafted(ran: Int32[Array, " slots"], offsets: Int32[Array, " slots"], most: int) -> Drafted:
    """Collect the drafts before each slot. `ran` is the token each slot follows, -1 for a missing
    draft."""
    slot = jnp.arange(len(ran), dtype=jnp.int32)[:, None]
    back = jnp.arange(most, dtype=jnp.int32)[None, :]
    earlier = ran.at[jnp.maximum(slot - back, 0)].get(mode="clip")
    return Drafted(offsets, jnp.where(back < offsets[:, None], earlier, -1))


def accepted(tokens: Int32[Array, " slots"], drafts: Drafted) -> Bool[Array, " slots"]:
    """Mask of accepted slots, given the token sampled in each."""
    with jax.named_scope("accept"):
        ran = drafts.earlier[:, 0]
        wrong = (drafts.offsets > 0) & ((ran < 0) | (jnp.roll(tokens, 1) != ran))
        total = jnp.cumsum(wrong.astype(jnp.int32))
        first = jnp.arange(len(tokens), dtype=jnp.int32) - drafts.offsets
        return total == total.at[first].get(mode="clip")  # no mismatch since the row's first slot


def last_of_each(
    counts: Bool[Array, " slots"], offsets: Int32[Array, " slots"]
) -> Bool[Array, " slots"]:
    """Mask of each row's last accepted slot, whose token is the row's next input."""
    goes_on = (jnp.roll(offsets, -1) > 0) & jnp.roll(counts, -1)
    return counts & ~goes_on.at[-1].set(False)
