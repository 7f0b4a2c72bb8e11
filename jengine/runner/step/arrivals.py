"""Layers whose parameters are in the host's memory, and come to the devices while a step is traced.

In: the layers of a model, and which of them are on the host. Out: each of those with parameters
that are copied to the devices. A copy begins when the layer of the copy before is about to run, so
that it is under way while the layers between compute, and the devices hold no more than two such
layers at once. Must not know what layers compute.

Leaves on the host have the memory kind `pinned_host`, so a program takes them as it takes others;
an optimization barrier times the copies. XLA would let two arrays travel at a time and kernels wait
for the others; an option allows a whole layer. `weights.spared` chooses the layers: as few as hold
what is to be spared, evenly spread.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import jax
from flax import nnx
from jax import Array

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float


class Arrivals:
    """The parameters of some layers on their way, during one call of a model after the other."""

    def __init__(self, layers: Sequence[nnx.Module], on_host: Collection[int]) -> None:
        self._layers = layers
        order = sorted(on_host)
        self._first = order[0]
        self._after = {**dict(pairwise(order)), order[-1]: None}
        self._coming: dict[int, Any] = {}  # layer -> its parameters on the devices

    def arrived(
        self, index: int, layer: Any, x: Float[Array, "*tokens hidden"]
    ) -> tuple[Any, Float[Array, "*tokens hidden"]]:
        """The layer with all its parameters on the devices, and its input. Called for every layer,
        in their order."""
        if index == 0:
            self._coming = {}
            x = self._send_for(self._first, x)
        if index not in self._after:
            return layer, x
        own, following = self._coming.pop(index), self._after[index]
        if following is not None:
            own, x = self._send_for(following, (own, x))
        graph, _ = nnx.split(layer)
        return nnx.merge(graph, own), x

    def _send_for(self, layer: int, awaited: Any) -> Any:
        """Begin to copy a layer's parameters once these values are there. Returns the values, which
        wait for nothing: without the barrier XLA would begin with all copies at once."""
        _, parameters = nnx.split(self._layers[layer])
        parameters, awaited = jax.lax.optimization_barrier((parameters, awaited))
        self._coming[layer] = jax.device_put(parameters, jax.memory.Space.Device)
        return awaited
