"""Queries, keys and values of a layer before the KV cache, and causal attention without a cache.

`AttentionInputs` holds the fused QKV matmul's output with the norm and rotation still pending, so
that a backend can fuse norm, rotation and cache write into one kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jengine.config import AttentionConfig
from jengine.layers.alibi import alibi_slopes
from jengine.layers.norm import rms_norm
from jengine.layers.rope import rotate
from jengine.layers.soft_cap import soft_cap

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Bool, Float


class HeadNorms(NamedTuple):
    """RMS norm weights of q and k heads (QK-norm); `offset` is added to the weights, as 1 in
    Gemma."""

    q_weight: Array  # [dim], or [kv_heads, group, dim] for all heads as one vector
    k_weight: Array  # [dim], or [kv_heads, dim]
    eps: float
    offset: float

    def __call__(
        self, q: Float[Array, "*tokens kv_heads group dim"], k: Float[Array, "*tokens kv_heads dim"]
    ) -> tuple[Float[Array, "*tokens kv_heads group dim"], Float[Array, "*tokens kv_heads dim"]]:
        q_weight, k_weight = self.q_weight, self.k_weight
        if self.offset:
            q_weight, k_weight = (w.astype("float32") + self.offset for w in (q_weight, k_weight))
        return rms_norm(q, q_weight, self.eps), rms_norm(k, k_weight, self.eps)


class AttentionInputs(NamedTuple):
    """QKV of one layer, [..., kv_heads, group + 2, dim]: per KV head its query group, then key,
    then value.

    The norms come before the rotation; both apply to queries and keys only.
    """

    config: AttentionConfig
    qkv: Array  # [..., kv_heads, group + 2, dim], float32 unless a backend rounds it
    norms: HeadNorms | None
    rotation: tuple[Array, Array] | None  # cos and sin, [..., dim / 2] each
    sinks: Array | None = None  # [kv_heads, group]
    # f32[kv_heads, group, distances], in the order of `layers.distance_bias`.
    biases: Array | None = None
    query_scale: Array | None = None  # f32[dim] multiplies queries after rotation

    def normalized(self) -> AttentionInputs:
        """Apply the QK-norms now, for backends that cannot fuse them; `norms` is then None."""
        if self.norms is None:
            return self
        q, k, v = self.qkv[..., :-2, :], self.qkv[..., -2, :], self.qkv[..., -1, :]
        q, k = self.norms(q, k)
        qkv = jnp.concatenate([q, k[..., None, :], v[..., None, :]], axis=-2)
        return self._replace(qkv=qkv, norms=None)

    def heads(
        self,
    ) -> tuple[
        Float[Array, "*tokens heads dim"],
        Float[Array, "*tokens kv_heads dim"],
        Float[Array, "*tokens kv_heads dim"],
    ]:
        """Return (q, k, v), with norm and rotation applied to q and k."""
        q, k, v = self.qkv[..., :-2, :], self.qkv[..., -2, :], self.qkv[..., -1, :]
        if self.norms is not None:
            q, k = self.norms(q, k)
        q = q.reshape(*q.shape[:-3], self.config.num_heads, self.config.head_dim)
        if self.rotation is not None:
            with jax.named_scope("rope"):
                q, k = (rotate(heads, *self.rotation) for heads in (q, k))
        return self.scaled(q), k, v

    def scaled(self, q: Float[Array, "*tokens dim"]) -> Float[Array, "*tokens dim"]:
        """Multiply rotated queries by `query_scale`, if the layer has one."""
        if self.query_scale is None:
            return q
        return (q * jnp.broadcast_to(self.query_scale, q.shape)).astype(q.dtype)


class ReadInputs(NamedTuple):
    """Queries of a layer without k and v, which reads the KV cache of an earlier layer."""

    config: AttentionConfig
    q: Array  # [..., kv_heads, group, dim], normalised and rotated
    sinks: Array | None = None  # as in `AttentionInputs`
    biases: Array | None = None


class ScoreOptions(TypedDict, total=False):
    """Score scale and soft cap; by default a score is q @ k * head_dim ** -0.5."""

    scale: float
    soft_cap: float


def score_options(config: AttentionConfig) -> ScoreOptions:
    options: ScoreOptions = {}
    if config.scale is not None:
        options["scale"] = config.scale
    if config.soft_cap is not None:
        options["soft_cap"] = config.soft_cap
    return options


def dense_attention(inputs: AttentionInputs) -> Float[Array, "batch length heads dim"]:
    """Causal attention over whole sequences, without a KV cache."""
    return attend_whole(*inputs.heads(), inputs)


def attend_whole(
    q: Float[Array, "batch length heads dim"],
    k: Float[Array, "batch length kv_heads dim"],
    v: Float[Array, "batch length kv_heads dim"],
    inputs: AttentionInputs | ReadInputs,
) -> Float[Array, "batch length heads dim"]:
    """Causal attention without a KV cache on rotated q, k and v; scale, soft cap, window, sinks and
    biases come from `inputs`."""
    batch, length, heads, dim = q.shape
    config = inputs.config
    grouped = q.reshape(batch, length, k.shape[2], heads // k.shape[2], dim)
    scale = dim**-0.5 if config.scale is None else config.scale
    scores = jnp.einsum("btkgd,bskd->bkgts", grouped, k) * scale  # [B, KV, G, T, S]
    scores = soft_cap(scores, config.soft_cap)
    if config.alibi is not None:
        distance = np.arange(length)[None, :] - np.arange(length)[:, None]
        bias = alibi_slopes(config)[:, :, None, None] * distance.astype(np.float32)
        scores = scores + jnp.broadcast_to(bias, scores.shape)
    if inputs.biases is not None:
        before = np.arange(length)[:, None] - np.arange(length)[None, :]
        before = np.clip(before, 0, inputs.biases.shape[-1] - 1)
        scores = scores + jnp.broadcast_to(inputs.biases[:, :, before], scores.shape)
    seen = causal_mask(length, config.window, in_chunks=config.in_chunks)
    mask = jnp.broadcast_to(seen, scores.shape)
    scores = jnp.where(mask, scores, -jnp.inf)
    weights = softmax_with_sinks(scores, inputs.sinks)
    mixed = jnp.einsum("bkgts,bskd->btkgd", weights, v)
    return mixed.reshape(batch, length, heads, dim)


def softmax_with_sinks(
    scores: Float[Array, "batch kv_heads group queries keys"],
    sinks: Float[Array, "kv_heads group"] | None,
) -> Float[Array, "batch kv_heads group queries keys"]:
    """Softmax over keys. A sink is one extra logit per head that takes probability but has no
    value."""
    if sinks is None:
        return jax.nn.softmax(scores, axis=-1)
    column = jnp.broadcast_to(sinks.astype(scores.dtype)[:, :, None, None], scores[..., :1].shape)
    return jax.nn.softmax(jnp.concatenate([scores, column], axis=-1), axis=-1)[..., :-1]


def causal_mask(
    length: int, window: int | None, *, in_chunks: bool = False
) -> Bool[Array, "length length"]:
    """True where a query (first axis) may attend to a key."""
    query = jnp.arange(length)[:, None]
    key = jnp.arange(length)[None, :]
    seen = key <= query
    if window is None:
        return seen
    return seen & (query // window == key // window if in_chunks else key > query - window)
