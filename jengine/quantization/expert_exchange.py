"""Expert parallelism: dispatches tokens to their experts' devices and combines the sums.

In, per device: all tokens, their chosen experts, and a function that runs the local experts. Out,
per device: the sums of all tokens. No token is dropped: buffers are sized for all tokens going to
one device. Must not know weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import jax.numpy as jnp
from jax import Array, lax

from jengine.layers.moe import Picked

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Bool, Float, Int

# Tokens per device below which all-reducing sums is cheaper than all-to-all.
FEWEST_TOKENS = 8
# Runs local experts: (x [tokens, hidden], experts by local index (-1: remote), live) -> sums.
Mix = Callable[[Array, Picked, Array | None], Array]


class Spread(NamedTuple):
    """Placement of experts, as seen inside a mapped function."""

    apart: tuple[str, ...]  # mesh axes over which tokens differ (data-parallel replicas)
    alike: tuple[str, ...]  # mesh axes over which tokens are replicated
    devices: int  # over all these axes
    experts: int  # per device
    is_cpu: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Mesh axes in expert order."""
        return self.apart + self.alike

    @property
    def number_alike(self) -> Array | int:
        """Index of this device among those with replicated tokens."""
        return lax.axis_index(self.alike) if self.alike else 0

    @property
    def devices_alike(self) -> int:
        """Number of devices with replicated tokens."""
        return lax.axis_size(self.alike) if self.alike else 1

    def own(self, experts: Int[Array, "tokens chosen"]) -> Int[Array, "tokens chosen"]:
        """Local indices of this device's experts; -1 for remote ones."""
        mine = experts - lax.axis_index(self.names) * self.experts
        return jnp.where((mine >= 0) & (mine < self.experts), mine, -1)


class Exchange(Protocol):
    def __call__(
        self, mix: Mix, x: Array, picked: Picked, live: Array | None, spread: Spread
    ) -> Array: ...


def exchange_sums(
    mix: Mix, x: Array, picked: Picked, live: Array | None, spread: Spread
) -> Float[Array, "tokens hidden"]:
    """Run local experts on every token and reduce the sums.

    Where tokens are replicated: one all-reduce. Across data-parallel replicas: all-gather of
    tokens, then reduce-scatter of sums.
    """
    if not spread.apart:
        own = picked._replace(experts=spread.own(picked.experts))
        return lax.psum(mix(x, own, live), spread.alike)
    experts = picked.experts if live is None else jnp.where(live[:, None] < 0, -1, picked.experts)

    def gathered(values: Array) -> Array:
        return lax.all_gather(values, spread.apart, tiled=True)

    assert picked.slots is None, "adapters are not built for replicas that step together"
    own = Picked(gathered(picked.weights), spread.own(gathered(experts)))
    made = mix(gathered(x), own, None)
    sums = lax.psum_scatter(made, spread.apart, tiled=True)
    return lax.psum(sums, spread.alike) if spread.alike else sums


def exchange_tokens(
    mix: Mix, x: Array, picked: Picked, live: Array | None, spread: Spread
) -> Float[Array, "tokens hidden"]:
    """Dispatch each token to its experts' devices once (all-to-all) and combine; small batches use
    `exchange_sums`."""
    tokens, devices = len(x), spread.devices_alike
    if tokens < FEWEST_TOKENS * devices:
        return exchange_sums(mix, x, picked, live, spread)
    experts = picked.experts if live is None else jnp.where(live[:, None] < 0, -1, picked.experts)
    share = -(-tokens // devices)
    first = spread.number_alike * share

    def own_share(values: Array, filler: float) -> Array:
        padding = ((0, share * devices - tokens), (0, 0))
        whole = jnp.pad(values, padding, constant_values=filler)
        return lax.dynamic_slice_in_dim(whole, first, share)

    slots = None if picked.slots is None else own_share(picked.slots[:, None], 0)[:, 0]
    own = Picked(own_share(picked.weights, 0), own_share(experts, -1), slots)
    sums = dispatch_and_combine(mix, own_share(x, 0), own, spread)
    if spread.alike:
        sums = lax.all_gather(sums, spread.alike, tiled=True)
    return sums[:tokens]


def dispatch_and_combine(
    mix: Mix, x: Float[Array, "share hidden"], picked: Picked, spread: Spread
) -> Float[Array, "share hidden"]:
    """Dispatch and combine this device's share of the tokens."""
    share = len(x)
    owner = jnp.where(picked.experts < 0, -1, picked.experts // spread.experts)
    goes = jnp.any(owner[None] == jnp.arange(spread.devices)[:, None, None], axis=-1)
    route = Route.of(goes, spread)
    weights = lax.bitcast_convert_type(picked.weights.astype(jnp.float32), jnp.int32)
    slots = [] if picked.slots is None else [picked.slots[:, None]]
    notes = jnp.concatenate([picked.experts, weights, *slots], axis=1)  # one message
    there, count = route.sent(x, 0), picked.experts.shape[1]
    experts, weights, theirs = jnp.split(route.sent(notes, -1), [count, 2 * count], axis=1)
    weights = lax.bitcast_convert_type(weights, jnp.float32)
    made = mix(there, Picked(weights, spread.own(experts), theirs[:, 0] if slots else None), None)
    parts = route.returned(made)
    # By gathers, in device order: the summation order of a scatter is undefined.
    place = jnp.cumsum(goes.reshape(-1)).reshape(goes.shape) - 1
    back = jnp.where(goes[..., None], parts[jnp.where(goes, place, 0)], 0)
    assert back.shape[:2] == (spread.devices, share), "a part of each device and token"
    return jnp.sum(back, axis=0)


@dataclass(frozen=True)
class Route:
    """Rows that this device sends, by receiver and token. A receiver has a buffer slot for each
    token of each sender."""

    tokens: Array  # i32[rows]: token index of each row
    starts: Array  # i32[devices]: first row for each receiver
    sizes: Array  # i32[devices]: number of rows for each receiver
    received: Array  # i32[devices]: number of rows from each sender
    share: int
    spread: Spread

    @classmethod
    def of(cls, goes: Bool[Array, "devices share"], spread: Spread) -> Route:
        """Route each token to the devices where `goes` is true."""
        share = goes.shape[1]
        order = jnp.argsort(~goes.reshape(-1), stable=True)
        sizes = jnp.sum(goes, axis=1, dtype=jnp.int32)
        received = lax.all_to_all(sizes, spread.names, 0, 0, tiled=True)
        starts = jnp.cumsum(sizes) - sizes
        return cls(order % share, starts, sizes, received, share, spread)

    def sent(self, values: Array, filler: float) -> Array:
        """Send [share, ...] to receivers as [devices * share, ...]; unused slots hold `filler`."""
        devices, share = self.spread.devices, self.share
        free = jnp.full((devices * share, *values.shape[1:]), filler, values.dtype)
        mine = jnp.full(devices, lax.axis_index(self.spread.names) * share, jnp.int32)
        return self._ragged(values[self.tokens], free, self.starts, self.sizes, mine, self.received)

    def returned(self, made: Array) -> Array:
        """Return results [devices * share, ...] to the senders."""
        places = jnp.arange(self.spread.devices, dtype=jnp.int32) * self.share
        theirs = lax.all_to_all(self.starts, self.spread.names, 0, 0, tiled=True)
        free = jnp.zeros_like(made)
        return self._ragged(made, free, places, self.received, theirs, self.sizes)

    def _ragged(
        self, values: Array, into: Array, starts: Array, sizes: Array, places: Array, come: Array
    ) -> Array:
        """`lax.ragged_all_to_all` with up to `share` rows per slice."""
        names = self.spread.names
        if self.spread.is_cpu:
            return padded_all_to_all(values, into, starts, sizes, places, come, names, self.share)
        return lax.ragged_all_to_all(values, into, starts, sizes, places, come, axis_name=names)


def padded_all_to_all(
    values: Array,
    into: Array,
    starts: Array,
    sizes: Array,
    places: Array,
    come: Array,
    names: tuple[str, ...],
    most: int,
) -> Array:
    """`lax.ragged_all_to_all` for CPUs, where XLA lacks it: exchanges `most` rows per pair."""
    each = jnp.arange(most)[None]
    rows = jnp.where(each < sizes[:, None], starts[:, None] + each, 0)
    got = lax.all_to_all(values[rows], names, 0, 0, tiled=True)
    begins = lax.all_to_all(places, names, 0, 0, tiled=True)
    nowhere = len(into)  # past the end, so dropped
    where = jnp.where(each < come[:, None], begins[:, None] + each, nowhere)
    return into.at[where].set(got, mode="drop")


EXCHANGES: dict[str, Exchange] = {
    "allgather_reducescatter": exchange_sums,
    "all_to_all": exchange_tokens,
}
