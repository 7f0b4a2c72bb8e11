"""Attention as a module: queries, keys and values in one matmul, mixing, and the output matmul.

In: activations and a StepContext. Out: what is added to the residual stream. Must not know where
keys and values are kept, nor other layers.
"""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx
from jax import Array

from jengine.config import AttentionConfig, ModelConfig
from jengine.layers.attention import AttentionInputs, HeadNorms
from jengine.layers.linear import add_bias, project
from jengine.models.context import StepContext
from jengine.models.norms import head_norms
from jengine.models.parameter import normal, parameter, zeros


class Attention(nnx.Module):
    """qkv is one matmul whose outputs are grouped by KV head: [q of the group, k, v].

    Grouping by KV head lets one logical axis shard queries, keys and values together.
    """

    def __init__(
        self,
        config: ModelConfig,
        attention: AttentionConfig,
        layer: int,
        dtype: Any,
        rngs: nnx.Rngs | None,
    ):
        self.layer = layer
        self.config = attention
        kv, group = attention.num_kv_heads, attention.group
        init = normal(config.initializer_range)
        shape = (config.hidden_size, kv, group + 2, attention.head_dim)
        axes = ("embed", "kv_heads", None, None)
        self.qkv = parameter(rngs, shape, axes, dtype, init)
        if attention.qkv_bias:
            self.qkv_bias = zeros(rngs, shape[1:], axes[1:], dtype)
        norms = head_norms(config, attention, dtype, rngs)
        if norms is not None:
            self.q_norm, self.k_norm = norms
        out_shape = (kv, group, attention.head_dim, config.hidden_size)
        self.out = parameter(rngs, out_shape, ("kv_heads", None, None, "embed"), dtype, init)
        if attention.output_bias:
            self.out_bias = zeros(rngs, (config.hidden_size,), ("embed",), dtype)

    def __call__(self, x: Array, context: StepContext) -> Array:
        qkv = project("...h,hkgd->...kgd", x, self.qkv[...])  # [..., KV, G + 2, D]
        if self.config.qkv_bias:
            qkv = add_bias(qkv, self.qkv_bias[...])
        rope = self.config.rope
        rotation = None if rope is None else context.rotation(rope, self.config.head_dim)
        inputs = AttentionInputs(self.config, qkv, self._norms(), rotation)
        with jax.named_scope("attend"):
            mixed = context.mix(self.layer, inputs)
        # Two flat dimensions: XLA transposes the weight in every step for a contraction of three.
        flat = mixed.reshape(*mixed.shape[:-2], -1)
        out = project("...i,ih->...h", flat, self.out[...].reshape(-1, self.out.shape[-1]))
        return add_bias(out, self.out_bias[...]) if self.config.output_bias else out

    def _norms(self) -> HeadNorms | None:
        if self.config.qk_norm is None:
            return None
        weights = self.q_norm.weight[...], self.k_norm.weight[...]
        return HeadNorms(*weights, self.q_norm.eps, self.q_norm.offset)
