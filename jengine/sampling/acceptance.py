"""Which sampled tokens count where a step runs drafts: those whose whole past was sampled.

A row's slots follow each other: the first is sampled after the row's last token, each other after a
draft, which was run as if it had been sampled in the slot before. A slot counts if the drafts of
the row up to it are the tokens sampled before them. As a token depends on logits, seed and position
alone, the tokens that count are those of decoding one by one.
Must not know: logits, how tokens are sampled, where drafts come from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Bool, Int32


class Drafted(NamedTuple):
    """The drafts among what a step ran. K: the most drafts of a row."""

    offsets: Array  # i32[S] 0: after the row's last token; j: after its j-th draft
    # i32[S, K] the drafts up to a slot, the nearest first: [s, d] stands d + 1 before the token
    # to be sampled; -1: no draft
    earlier: Array


def drafted(ran: Int32[Array, " slots"], offsets: Int32[Array, " slots"], most: int) -> Drafted:
    """The drafts of each slot. `ran` is the token after which it is sampled, -1 for a draft that
    is missing."""
    slot = jnp.arange(len(ran), dtype=jnp.int32)[:, None]
    back = jnp.arange(most, dtype=jnp.int32)[None, :]
    earlier = ran.at[jnp.maximum(slot - back, 0)].get(mode="clip")
    return Drafted(offsets, jnp.where(back < offsets[:, None], earlier, -1))


def accepted(tokens: Int32[Array, " slots"], drafts: Drafted) -> Bool[Array, " slots"]:
    """Which slots count, given what was sampled in each."""
    with jax.named_scope("accept"):
        ran = drafts.earlier[:, 0]
        wrong = (drafts.offsets > 0) & ((ran < 0) | (jnp.roll(tokens, 1) != ran))
        total = jnp.cumsum(wrong.astype(jnp.int32))
        first = jnp.arange(len(tokens), dtype=jnp.int32) - drafts.offsets
        return total == total.at[first].get(mode="clip")  # nothing was wrong since the first slot


def last_of_each(
    counts: Bool[Array, " slots"], offsets: Int32[Array, " slots"]
) -> Bool[Array, " slots"]:
    """The last slot of each row that counts: its token is the row's next input."""
    goes_on = (jnp.roll(offsets, -1) > 0) & jnp.roll(counts, -1)
    return counts & ~goes_on.at[-1].set(False)
