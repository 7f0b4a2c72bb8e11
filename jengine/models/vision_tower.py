"""The vision tower shared by families: image patches to embeddings of a language model.

In: packed patches of any number of images, with positions and segment ids. Out: one embedding per
merged square of patches. Must not know files, prompts or caches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import MergerConfig, RopeConfig, VisionActivation, VisionConfig
from jengine.layers.initializer import Initializer
from jengine.layers.linear import add_bias
from jengine.layers.mlp import ACTIVATIONS
from jengine.layers.norm import rms_norm
from jengine.layers.rope import inverse_frequencies, rotate
from jengine.layers.segment_attention import segment_attention
from jengine.models.linear import Factory, Linear
from jengine.models.normed_vision_block import NormedVisionBlock
from jengine.models.norms import make_norm, norms_around
from jengine.models.parameter import normal, parameter, zeros

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float32, Int

Turns = tuple[Array, Array]  # cos and sin of each patch


class PatchInput(NamedTuple):
    """Packed patches. The patches of one output token are consecutive; a class token precedes its
    image's patches."""

    values: Array  # f32[patches, values per patch]
    places: Array  # i32[2, patches] row and column in the image, -1 for a class vector
    table: Array  # f32[2, patches] the same, in units of the learned position table
    segments: Array  # i32[2, patches] id of the frame, and of the window within it; -1: padding


class BlockConfig(Protocol):
    """The part of a tower's config that a block reads."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def activation(self) -> VisionActivation: ...
    @property
    def gated(self) -> bool: ...
    @property
    def mlp_bias(self) -> bool: ...
    @property
    def qkv_bias(self) -> bool: ...
    @property
    def layer_scales(self) -> bool: ...
    @property
    def full_layers(self) -> tuple[int, ...] | None: ...


class VisionBlock(nnx.Module):
    """Attention within segments and an MLP, each added to the residual stream, with norms before
    the blocks or after the sums."""

    def __init__(self, factory: Factory, vision: BlockConfig, layer: int):
        hidden, inner = vision.hidden_size, vision.intermediate_size
        heads, dim = vision.num_heads, vision.head_dim
        self.activation, self.gated = vision.activation, vision.gated
        full = vision.full_layers is None or layer in vision.full_layers
        self.segments = 0 if full else 1
        self.before_attention, self.after_attention = norms_around(factory)
        axes = ("embed", None, "heads", None)
        self.qkv = Linear(factory, (hidden,), (3, heads, dim), axes, bias=vision.qkv_bias)
        axes = ("heads", None, "embed")
        self.out = Linear(factory, (heads, dim), (hidden,), axes, bias=True)
        self.is_scaled = vision.layer_scales
        if self.is_scaled:
            init, shape = Initializer(mean=1.0), (hidden,)
            self.attention_scale = parameter(factory.rngs, shape, ("embed",), factory.dtype, init)
            self.mlp_scale = parameter(factory.rngs, shape, ("embed",), factory.dtype, init)
        self.before_mlp, self.after_mlp = norms_around(factory)
        halves = (2,) if vision.gated else ()
        axes = ("embed", *(None for _ in halves), "mlp")
        self.up = Linear(factory, (hidden,), (*halves, inner), axes, bias=vision.mlp_bias)
        self.down = Linear(factory, (inner,), (hidden,), ("mlp", "embed"), bias=vision.mlp_bias)

    def __call__(
        self,
        x: Float32[Array, "patches hidden"],
        segments: Int[Array, "kinds patches"],
        turns: Turns | None,
    ) -> Float32[Array, "patches hidden"]:
        qkv = self.qkv(x, norm=self.before_attention)
        q, k, v = qkv[:, 0], qkv[:, 1], qkv[:, 2]
        if turns is not None:
            q, k = rotate(q, *turns), rotate(k, *turns)
        mixed = segment_attention(q, k, v, segments[self.segments])
        x = self._added(x, self.out, mixed.reshape(x.shape), "attention_scale")
        x = self.after_attention(x)
        inner = self.up(x, norm=self.before_mlp)
        act = ACTIVATIONS[self.activation]
        inner = act(inner[:, 0]) * inner[:, 1] if self.gated else act(inner)
        return self.after_mlp(self._added(x, self.down, inner, "mlp_scale"))

    def _added(self, x: Array, matmul: Linear, inner: Array, scale: str) -> Array:
        """x + matmul(inner), with layer scale if the tower has it."""
        if not self.is_scaled:
            return matmul(inner, residual=x)
        made = matmul(inner)
        vector = getattr(self, scale)[...].astype(jnp.float32)
        return x + made * jnp.broadcast_to(vector, made.shape)


# By whether blocks have QK- and value norms.
BLOCKS = {False: VisionBlock, True: NormedVisionBlock}


class VisionTower(nnx.Module):
    """A vision transformer and its patch merger."""

    def __init__(self, factory: Factory, vision: VisionConfig):
        self.vision = vision
        hidden = vision.hidden_size
        own = replace(
            factory.config, hidden_size=hidden, norm=vision.norm, norm_eps=vision.norm_eps,
            initializer_range=vision.initializer_range, norm_places="before",
        )  # fmt: skip
        factory = replace(factory, config=own)
        init, rngs, dtype = normal(vision.initializer_range), factory.rngs, factory.dtype
        shape = (hidden, vision.patch_values)
        self.patch_weight = parameter(rngs, shape, (None, None), dtype, init)
        if vision.patch_bias:
            self.patch_bias = zeros(rngs, (hidden,), (None,), dtype)
        if vision.class_vector:
            self.class_vector = parameter(rngs, (hidden,), (None,), dtype, init)
        if vision.table_side:
            rows = vision.table_side**2 + vision.class_vector
            self.table = parameter(rngs, (rows, hidden), (None, None), dtype, init)
        if vision.axis_rows:
            shape = (2, vision.axis_rows, hidden)
            self.axis_table = parameter(rngs, shape, (None, None, None), dtype, init)
        if vision.norm_before:
            self.norm_before = make_norm(factory, (hidden,), (None,))
        block, layers = BLOCKS[vision.norms_inside], range(vision.num_layers)
        self.blocks = nnx.List([block(factory, vision, layer) for layer in layers])
        if vision.norm_after:
            self.norm_after = make_norm(factory, (hidden,), (None,))
        self.merger = PatchMerger(factory, vision.merger, hidden)
        deep = replace(vision.merger, kind="norm_merged")
        self.deep_mergers = nnx.List(
            [PatchMerger(factory, deep, hidden) for _ in vision.deep_layers]
        )

    def __call__(self, patches: PatchInput) -> Float32[Array, "tokens width"]:
        with jax.named_scope("patches"):
            x = self._embedded(patches)
        turns, deep = self._turns(patches.places), list[Array]()
        for layer, block in enumerate(self.blocks):
            with jax.named_scope(f"vision_{layer}"):
                x = block(x, patches.segments, turns)
            if layer in self.vision.deep_layers:
                deep.append(self.deep_mergers[len(deep)](x))
        if self.vision.norm_after:
            x = self.norm_after(x)
        return jnp.concatenate([self.merger(x), *deep], axis=-1)

    def _embedded(self, patches: PatchInput) -> Float32[Array, "patches hidden"]:
        vision = self.vision
        weight = self.patch_weight[...].astype(jnp.float32)
        x = jnp.einsum("pv,hv->ph", patches.values, weight)
        if vision.patch_bias:
            x = add_bias(x, self.patch_bias[...])
        if vision.class_vector:
            is_class = (patches.places[0] < 0)[:, None]
            x = jnp.where(is_class, self.class_vector[...].astype(jnp.float32), x)
        if vision.table_side:
            x = x + self._learned(patches)
        if vision.axis_rows:
            columns, rows = self.axis_table[...].astype(jnp.float32)
            x = x + columns[patches.places[1]] + rows[patches.places[0]]
        return self.norm_before(x) if vision.norm_before else x

    def _learned(self, patches: PatchInput) -> Float32[Array, "patches hidden"]:
        """Learned position per patch, bilinearly interpolated from the table."""
        side, first = self.vision.table_side, int(self.vision.class_vector)
        rows = self.table[...].astype(jnp.float32)
        low = jnp.floor(patches.table)
        part = patches.table - low
        low = low.astype(jnp.int32)
        high = jnp.minimum(low + 1, side - 1)
        found = jnp.zeros((patches.table.shape[1], rows.shape[1]), jnp.float32)
        for row, row_share in ((low[0], 1 - part[0]), (high[0], part[0])):
            for column, share in ((low[1], 1 - part[1]), (high[1], part[1])):
                found = found + rows[first + row * side + column] * (row_share * share)[:, None]
        if not first:
            return found
        return jnp.where((patches.places[0] < 0)[:, None], rows[:1], found)

    def _turns(self, places: Int[Array, "2 patches"]) -> Turns | None:
        """(cos, sin): half of a head's pairs rotate by row, half by column."""
        if self.vision.rope_theta is None:
            return None
        half, rope = self.vision.head_dim // 2, RopeConfig(self.vision.rope_theta)
        frequencies = jnp.asarray(inverse_frequencies(rope, half, 1))
        angles = jnp.einsum("ap,f->paf", places.astype(jnp.float32), frequencies)
        angles = angles.reshape(places.shape[1], -1)
        return jnp.cos(angles), jnp.sin(angles)


class PatchMerger(nnx.Module):
    """Merges each square of patches into one vector, in the configured way."""

    def __init__(self, factory: Factory, config: MergerConfig, hidden: int):
        self.config = config
        merged = hidden * config.patches
        own = replace(factory.config, norm=config.norm, norm_eps=config.norm_eps)
        factory = replace(factory, config=own)
        if config.kind == "scaled_average":
            if config.standardizes:
                self.shift = zeros(factory.rngs, (hidden,), (None,), factory.dtype)
                ones = Initializer(mean=1.0)
                self.scale = parameter(factory.rngs, (hidden,), (None,), factory.dtype, ones)
            self.out = Linear(factory, (hidden,), (config.width,), ("embed", "embed"))
            return
        if config.kind != "none":
            width = merged if config.kind == "norm_merged" else hidden
            self.norm = make_norm(factory, (width,), ("embed",))
        if config.kind == "average":
            self.out = Linear(factory, (hidden,), (config.width,), ("embed", "embed"))
            return
        inner, bias = (config.inner,), config.bias
        self.up = Linear(factory, (merged,), inner, ("embed", "mlp"), bias=bias)
        self.down = Linear(factory, inner, (config.width,), ("mlp", "embed"), bias=bias)

    def __call__(self, x: Float32[Array, "patches hidden"]) -> Float32[Array, "tokens width"]:
        config = self.config
        with jax.named_scope("merge"):
            if config.kind == "scaled_average":
                return self.out(self._scaled_average(x))
            if config.kind == "average":
                squares = x.reshape(-1, config.patches, x.shape[-1])
                return self.out(self.norm(jnp.mean(squares, axis=1)))
            if config.kind == "norm_each":
                x = self.norm(x)
            merged = x.reshape(-1, config.patches * x.shape[-1])
            if config.kind == "norm_merged":
                merged = self.norm(merged)
            return self.down(ACTIVATIONS[config.activation](self.up(merged)))

    def _scaled_average(
        self, x: Float32[Array, "patches hidden"]
    ) -> Float32[Array, "tokens hidden"]:
        """Average pooling, times sqrt(width), standardised and normed without weights."""
        config, hidden = self.config, x.shape[-1]
        mean = jnp.mean(x.reshape(-1, config.patches, hidden), axis=1) * hidden**0.5
        if config.standardizes:
            shift, scale = (one[...][None].astype(jnp.float32) for one in (self.shift, self.scale))
            mean = (mean - shift) * scale
        return rms_norm(mean, jnp.ones((hidden,)), config.norm_eps)
