"""Shared attention and MLP blocks of Zamba 2, used by several Mamba-2 layers.

In: the residual stream and the token embeddings. Out: an addition to the residual stream. Layers
share a block's weights; each has its own low-rank additions to the block's first matmuls, and its
own output matmul.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import SharedBlockConfig
from jengine.layers.mlp import gated
from jengine.models.attention import Attention
from jengine.models.context import StepContext
from jengine.models.linear import Factory, Linear, Norm
from jengine.models.mamba2 import Mamba2
from jengine.models.norms import RmsNorm

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32


class SharedBlock(nnx.Module):
    """Attention over [residual stream, embedding], then a gated MLP on its output alone: no
    residual connection between them."""

    def __init__(self, factory: Factory, config: SharedBlockConfig):
        self.activation = config.activation
        hidden, inner, bias = factory.config.hidden_size, config.mlp_size, config.mlp_bias
        self.before_attention = RmsNorm(factory, (2 * hidden,), (None,))
        self.attention = Attention(factory, config.attention, 0, inputs=2 * hidden)
        self.before_mlp = RmsNorm(factory, (hidden,), ("embed",))
        axes = ("embed", None, "mlp")
        self.gate_up = Linear(factory, (hidden,), (2, inner), axes, bias=bias)
        self.down = Linear(factory, (inner,), (hidden,), ("mlp", "embed"), bias=bias)

    def __call__(
        self, x: Float[Array, "*tokens hidden"], context: StepContext, added: Added, layer: int
    ) -> Float32[Array, "*tokens hidden"]:
        assert context.embedded is not None, "kept by the decoder"
        live = context.live
        both = self.before_attention(jnp.concatenate([x, context.embedded], axis=-1))
        mixed = self.attention(both, context, added=added.to_heads(both, live), layer=layer)
        normed = self.before_mlp(mixed)
        inner = self.gate_up(normed, live=live) + added.to_mlp(normed, live)
        return self.down(gated(inner, self.activation), live=live)


class Added(nnx.Module):
    """A layer's low-rank (LoRA-like) additions to a block's QKV and gate/up matmuls."""

    def __init__(self, factory: Factory, config: SharedBlockConfig):
        hidden, heads = factory.config.hidden_size, config.attention.num_heads
        rank, up = config.mlp_rank, (None, None, "mlp")
        self.mlp_down = Linear(factory, (hidden,), (rank,), ("embed", None))
        self.mlp_up = Linear(factory, (rank,), (2, config.mlp_size), up)
        self.has_heads = config.qkv_rank is not None
        if config.qkv_rank is not None:
            rank, outputs = config.qkv_rank, (heads, config.attention.head_dim)
            up = None, "kv_heads", None
            self.qkv_down = Linear(factory, (2 * hidden,), (3, rank), ("embed", None, None))
            self.q_up, self.k_up, self.v_up = (
                Linear(factory, (rank,), outputs, up) for _ in range(3)
            )

    def to_heads(
        self, x: Float[Array, "*tokens inputs"], live: Array | None
    ) -> Float32[Array, "*tokens kv_heads members dim"] | None:
        """Addition to queries, keys and values (as many KV heads as query heads); None without
        one."""
        if not self.has_heads:
            return None
        low = self.qkv_down(x, live=live)
        ups = self.q_up, self.k_up, self.v_up
        return jnp.stack([up(low[..., i, :], live=live) for i, up in enumerate(ups)], axis=-2)

    def to_mlp(
        self, x: Float[Array, "*tokens hidden"], live: Array | None
    ) -> Float32[Array, "*tokens 2 inner"]:
        """Addition to the gate and up projections."""
        return self.mlp_up(self.mlp_down(x, live=live), live=live)


class SharedThenRecurrent(nnx.Module):
    """Mamba-2 on x + linear(shared block(x))."""

    def __init__(self, factory: Factory, config: SharedBlockConfig, layer: int):
        self.layer, self.block = layer, config.block
        hidden = (factory.config.hidden_size,)
        self.added = Added(factory, config)
        self.linear = Linear(factory, hidden, hidden, ("embed", None))
        self.recurrent = Mamba2(factory, config.recurrent, layer)

    def __call__(
        self,
        x: Float[Array, "*tokens hidden"],
        context: StepContext,
        *,
        norm: Norm | None = None,
        residual: Float[Array, "*tokens hidden"] | None = None,
    ) -> Float32[Array, "*tokens hidden"]:
        with jax.named_scope("shared_block"):
            block = context.shared_blocks[self.block]
            made = block(x, context, self.added, self.layer)
            given = self.linear(made, residual=x, live=context.live)
        return self.recurrent(given, context, norm=norm, residual=residual)
