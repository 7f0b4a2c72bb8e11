"""CPU offload: layers in host memory whose parameters are copied to devices during the step.

In: a model's layers, and which are on the host. Out: those layers with parameters on the devices.
The copy of an offloaded layer starts when the offloaded layer before it is about to run, so it
overlaps with the layers between, and devices hold at most two such layers. Must not know what
layers compute.

Host leaves have memory kind `pinned_host`; an optimization barrier delays each copy. By default XLA
runs two copies at a time, and kernels wait for the rest; a compiler option allows a whole layer's.
`weights.weight_offload` chooses the layers.
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


class OffloadedLayers:
    """Host-to-device transfers of offloaded layers, during tracing."""

    def __init__(self, layers: Sequence[nnx.Module], on_host: Collection[int]) -> None:
        self._layers = layers
        order = sorted(on_host)
        self._first = order[0]
        self._after = {**dict(pairwise(order)), order[-1]: None}
        self._coming: dict[int, Any] = {}  # layer -> its parameters being copied to the devices

    def arrived(
        self, index: int, layer: Any, x: Float[Array, "*tokens hidden"]
    ) -> tuple[Any, Float[Array, "*tokens hidden"]]:
        """The layer with its parameters on the devices, and its input. Must be called for every
        layer, in order."""
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
        """Start copying a layer once `awaited` is computed; returns `awaited`. Without the barrier
        XLA would start all copies at once."""
        _, parameters = nnx.split(self._layers[layer])
        parameters, awaited = jax.lax.optimization_barrier((parameters, awaited))
        self._coming[layer] = jax.device_put(parameters, jax.memory.Space.Device)
        return awaited
