"""StepContext: what a model is called with besides tokens.

In: positions, a mixer (attention through the KV cache, or over whole sequences) and the cache
arrays. Out: after the call, the new cache arrays. A model file knows nothing else of a step: no
block tables, rows of requests or sampling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import jax.numpy as jnp
from flax.nnx.tracers import TraceState
from jax import Array

from jengine.config import RopeConfig
from jengine.layers.attention import AttentionInputs, dense_attention
from jengine.layers.latent import LatentInputs, dense_latent_attention
from jengine.layers.rope import rotation
from jengine.models.taps import Tap

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int

# One type per kind of mixing; a mixer dispatches on it.
MixInputs = AttentionInputs | LatentInputs


class Mixer(Protocol):
    """Combines each token with earlier ones, and keeps what later tokens will need."""

    def __call__(self, caches: Any, layer: int, inputs: MixInputs) -> tuple[Array, Any]: ...


class StepContext:
    """One call of a model while it is traced; made inside the traced function, used once.

    Layers run one after the other in one trace, so the context can carry the cache arrays from
    layer to layer. A layer that is traced separately (scan, remat) may not change them.
    """

    def __init__(
        self,
        positions: Int[Array, "*tokens"],
        token_rows: Int[Array, "*tokens"],
        mixer: Mixer,
        caches: Any = None,
        tap: Tap | None = None,
        live: Array | None = None,
    ) -> None:
        self.positions = positions  # of each token in its sequence
        # Each token's index into arrays that the step holds per row, such as tap sets.
        self.token_rows = token_rows
        # i32 [...]: -1 for tokens that fill up the batch, whose results are never used.
        self.live = live
        self.caches = caches
        self._mixer = mixer
        self._tap = tap
        self._rotations: dict[tuple[RopeConfig, int], tuple[Array, Array]] = {}
        self._trace = TraceState()

    def mix(self, layer: int, inputs: MixInputs) -> Float[Array, "*tokens heads dim"]:
        """Combine the layer's tokens with earlier ones, and store what later tokens need."""
        mixed, caches = self._mixer(self.caches, layer, inputs)
        if caches is not self.caches:
            if not self._trace.is_valid():
                raise RuntimeError(
                    f"layer {layer} wrote to the KV cache inside a transformation (scan, remat or"
                    " another trace). Its arrays would leak; call StepContext.mix outside of it."
                )
            self.caches = caches
        return mixed

    def rotation(
        self, rope: RopeConfig, head_dim: int
    ) -> tuple[Float32[Array, "*tokens pairs"], Float32[Array, "*tokens pairs"]]:
        """cos and sin of every token, computed once per call and kind of rotation."""
        key = (rope, head_dim)
        if key in self._rotations:
            return self._rotations[key]
        found = rotation(self.positions, rope, head_dim)
        if self._trace.is_valid():
            self._rotations[key] = found
        return found

    @property
    def is_tapped(self) -> bool:
        """Whether values must pass `tap`, so that the sums around them cannot be fused."""
        return self._tap is not None

    def tap(
        self, name: str, value: Float[Array, "*tokens hidden"]
    ) -> Float[Array, "*tokens hidden"]:
        """The value at a tap point, after the tap has captured or changed it."""
        return value if self._tap is None else self._tap(name, value)


def whole_sequences(shape: tuple[int, ...], tap: Tap | None = None) -> StepContext:
    """The context of tokens [B, T] that are whole sequences: nothing is cached."""
    batch, length = shape
    positions = jnp.broadcast_to(jnp.arange(length)[None, :], shape)
    rows = jnp.broadcast_to(jnp.arange(batch)[:, None], shape)
    return StepContext(positions, rows, _dense, tap=tap)


def _dense(caches: Any, layer: int, inputs: MixInputs) -> tuple[Array, Any]:
    if isinstance(inputs, LatentInputs):
        return dense_latent_attention(inputs), caches
    return dense_attention(inputs), caches
