"""StepContext: what a model is called with besides tokens.

In: positions, a mixer (attention through the KV cache, or over whole sequences) and the cache
arrays. Out: after the call, the new cache arrays. It is all that model files see of a step: no
block tables, rows of requests or sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax.numpy as jnp
from flax.nnx.tracers import TraceState
from jax import Array

from jengine.config import RopeConfig
from jengine.layers.attention import AttentionInputs, ReadInputs, attend_whole, dense_attention
from jengine.layers.latent import LatentInputs, dense_latent_attention
from jengine.layers.recurrent import RecurrentInputs, dense_recurrent
from jengine.layers.rope import rotation
from jengine.models.tap_points import Tap

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int

# Inputs of a mixer, which dispatches on the type.
MixInputs = AttentionInputs | ReadInputs | LatentInputs | RecurrentInputs


class Mixer(Protocol):
    """Mixes each token with earlier ones (attention or recurrence) and updates the caches."""

    def __call__(self, caches: Any, layer: int, inputs: MixInputs) -> tuple[Array, Any]: ...


class GivenEmbeddings(NamedTuple):
    """Embeddings given instead of token ids (images, prompt embeddings), with optional additions
    after the first layers (deepstack)."""

    rows: Array  # f32[*tokens, (1 + layers) * hidden]
    mask: Array  # bool[*tokens] whether the token has a row
    is_final: bool = False  # whether rows skip the model's embedding scale

    def over(self, looked_up: Float32[Array, "*tokens hidden"]) -> Float32[Array, "*tokens hidden"]:
        """Replace looked-up embeddings where rows are given."""
        return jnp.where(self.mask[..., None], self.rows[..., : looked_up.shape[-1]], looked_up)

    def after(
        self, layer: int, x: Float32[Array, "*tokens hidden"]
    ) -> Float32[Array, "*tokens hidden"]:
        """Add the rows' deepstack part for this layer to the layer's output."""
        hidden = x.shape[-1]
        begin = (layer + 1) * hidden
        if begin >= self.rows.shape[-1]:
            return x
        added = self.rows[..., begin : begin + hidden]
        return jnp.where(self.mask[..., None], x + added, x)


# Cross attention: (layer, queries [..., heads, dim], score scale) -> outputs over the encoder's
# keys and values of each token's request.
CrossReader = Callable[[int, Array, float], Array]


class StepContext:
    """Context of one model call during tracing; created inside the traced function and used once.

    Layers run sequentially in one trace, so the context can thread the cache arrays through them. A
    layer traced separately (scan, remat) may not change them.
    """

    def __init__(
        self,
        positions: Int[Array, "*tokens"],
        token_rows: Int[Array, "*tokens"],
        mixer: Mixer,
        longest: int,
        caches: Any = None,
        tap: Tap | None = None,
        live: Array | None = None,
        keep: tuple[str, ...] = (),
        given: Sequence[GivenEmbeddings] = (),
        mrope_positions: Array | None = None,
        cross: CrossReader | None = None,
        *,
        keeps_experts: bool = False,
    ) -> None:
        self.positions = positions  # of each token in its sequence
        # Each token's row: index into per-row arrays of the step, such as tap sets.
        self.token_rows = token_rows
        # i32 [...]: -1 for padding tokens, whose results are never used.
        self.live = live
        self.given = given  # other tokens are looked up in the embedding
        # i32[3, ...] M-RoPE positions by frame, row and column; None: `positions`.
        self.mrope_positions = mrope_positions
        self.cross = cross  # None: no encoder
        self.caches = caches
        # Relative position biases of the last layer that had parameters for them.
        self.biases: Array | None = None
        # Values of the tap points named in `keep`.
        self.kept: dict[str, Array] = {}
        # Layer -> i32 [tokens, chosen], the experts of each token; None: not recorded.
        self.experts: dict[int, Array] | None = {} if keeps_experts else None
        # f32 [..., layers, size]: per-layer inputs (Gemma 4).
        self.layer_inputs: Array | None = None
        # Blocks shared by several layers, and the token embeddings that they read (Zamba 2).
        self.shared_blocks: Sequence[Any] = ()
        self.embedded: Array | None = None
        self._keep = keep
        self._longest = longest  # maximum sequence length
        self._mixer = mixer
        self._tap = tap
        self._rotations: dict[tuple[RopeConfig, int], tuple[Array, Array]] = {}
        self._trace = TraceState()

    def mix(self, layer: int, inputs: MixInputs) -> Float[Array, "*tokens heads dim"]:
        """Mix the layer's tokens with earlier ones and update its cache. For `ReadInputs`, `layer`
        is the one whose cache is read."""
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
        """(cos, sin) of every token, memoised per call and kind of rotation."""
        key = (rope, head_dim)
        if key in self._rotations:
            return self._rotations[key]
        found = rotation(self.positions, rope, head_dim, self._longest, self.mrope_positions)
        if self._trace.is_valid():
            self._rotations[key] = found
        return found

    def chosen_in(self, layer: int) -> Callable[[Array], None] | None:
        """Callback that records a layer's chosen experts; None if they are not recorded."""
        return None if self.experts is None else partial(self.experts.__setitem__, layer)

    @property
    def is_tapped(self) -> bool:
        """Whether values must pass `tap`, which prevents fusing the sums around tap points."""
        return self._tap is not None

    def tap(
        self, name: str, value: Float[Array, "*tokens hidden"]
    ) -> Float[Array, "*tokens hidden"]:
        """Pass a value through the tap, which may capture or replace it."""
        if self._tap is not None:
            value = self._tap(name, value)
        if name in self._keep:
            self.kept[name] = value
        return value


def whole_sequences(
    shape: tuple[int, ...], tap: Tap | None = None, keep: tuple[str, ...] = ()
) -> StepContext:
    """Context of whole sequences [batch, length] without a cache."""
    batch, length = shape
    positions = jnp.broadcast_to(jnp.arange(length)[None, :], shape)
    rows = jnp.broadcast_to(jnp.arange(batch)[:, None], shape)
    return StepContext(positions, rows, _dense, length, tap=tap, keep=keep)


def _dense(caches: Any, layer: int, inputs: MixInputs) -> tuple[Array, Any]:
    if isinstance(inputs, RecurrentInputs):
        return dense_recurrent(inputs), caches
    if isinstance(inputs, LatentInputs):
        return dense_latent_attention(inputs), caches
    if isinstance(inputs, ReadInputs):
        q = inputs.q.reshape(*inputs.q.shape[:-3], -1, inputs.q.shape[-1])
        k, v = caches[layer]
        return attend_whole(q, k, v, inputs), caches
    if inputs.config.is_source:
        caches = {**(caches or {}), layer: inputs.heads()[1:]}
    return dense_attention(inputs), caches
