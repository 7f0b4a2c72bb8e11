"""Bytes on one device: parameters, cache and the rest, from the engine's own declarations.

In: a model's shape and a layout. Out: Memory. The split of each array is read from the one table of
axes, on a mesh without devices. With stages: of the stage that holds most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh

from jengine.assembly.sizes.device_defaults import OVERLAP_DEPTH
from jengine.capacity.device_layout import DeviceLayout
from jengine.config import AttentionConfig, CacheConfig, CacheGroup, ModelConfig, ScheduleConfig
from jengine.kvcache.kinds import blocks_needed
from jengine.models.parameter import named_parameters
from jengine.models.quantized import as_rounded
from jengine.models.stages import stage_layout
from jengine.runner.memory.cache_size import scratch_bytes
from jengine.runner.step.attention_backend import CODES
from jengine.runner.step.group_arrays import block_bytes_on_each
from jengine.runner.step.state import empty_state, placed_state, state_bytes
from jengine.runner.variants.buckets import SCORED_AT_ONCE_ON_GPUS, whole_chunks
from jengine.weights.abstract import abstract_model
from jengine.weights.layers_to_offload import layers_to_offload
from pallas_kernels.decode_attention import least_shared, rows_of_a_team, shared_multiple
from sharding.mesh import mesh_sizes
from sharding.placement import Placement

SCALES = ("scale", "zero", "input_scale")  # of quantized weights


@dataclass(frozen=True)
class ParameterShard:
    """One parameter as one device holds it."""

    path: str
    axes: tuple[str | None, ...]
    elements: int
    itemsize: int
    weights: int  # numbers that activations are multiplied with; two in a byte of four bits each

    @property
    def bytes(self) -> int:
        """Bytes on this device."""
        return self.elements * self.itemsize

    @property
    def layer(self) -> int | None:
        """The layer it belongs to, if it belongs to one."""
        words = self.path.split(".")
        return int(words[1]) if words[0] == "layers" else None


@dataclass(frozen=True)
class Memory:
    """Memory of one device: what the engine holds there and what is left for the KV cache."""

    config: ModelConfig
    layout: DeviceLayout
    schedule: ScheduleConfig
    block_size: int
    usable: int  # bytes of one device that the engine may take
    codes: str | None = None  # what the cache holds in place of plain numbers
    offloaded: float = 0  # GiB of layers that stay in the host's memory

    @cached_property
    def placement(self) -> Placement:
        """Placement of arrays on a mesh without devices: enough to ask for shard shapes."""
        heads = tuple(spec.kv_heads for spec in self.config.cache_specs)
        layout = self.layout
        sizes = mesh_sizes(layout.tp * layout.pcp, layout.pp, heads, layout.dcp, layout.pcp)
        kinds = (AxisType.Auto,) * len(sizes)
        return Placement(cast(Mesh, AbstractMesh(tuple(sizes.values()), tuple(sizes), kinds)))

    @cached_property
    def all_parts(self) -> list[ParameterShard]:
        """Every parameter as a device that has it holds it."""
        parts = []
        for path, axes, whole, dtype in declared(self.config):
            shape = self.placement.sharding(axes, whole).shard_shape(whole)
            count = math.prod(shape)
            if self.layout.ep and "experts" in axes:
                count = math.prod(whole) // self.layout.ep
            scales = path.rpartition(".")[2] in SCALES
            weights = 0 if scales else count * (2 if dtype == jnp.uint8 else 1)
            parts.append(ParameterShard(path, axes, count, dtype.itemsize, weights))
        return parts

    @cached_property
    def stage(self) -> list[int]:
        """The layers of the stage that holds most."""
        stages = [
            [layer for layer in slots if layer is not None]
            for slots in stage_layout(self.config, self.layout.pp).stages
        ]
        return max(stages, key=lambda stage: sum(p.bytes for p in self._parts_in(stage)))

    @cached_property
    def parts(self) -> list[ParameterShard]:
        """The parameters on one device."""
        outside = [part for part in self.all_parts if part.layer is None]
        return [*outside, *self._parts_in(self.stage)]

    def _parts_in(self, stage: Sequence[int]) -> list[ParameterShard]:
        return [part for part in self.all_parts if part.layer in stage]

    @property
    def weights(self) -> int:
        """Bytes of parameters that stay on the device."""
        return sum(part.bytes for part in self.parts) - self.on_host

    @cached_property
    def _layer_bytes(self) -> dict[int, int]:
        return {layer: sum(p.bytes for p in self._parts_in([layer])) for layer in self.stage}

    @property
    def on_host(self) -> int:
        """Bytes of the layers in the host's memory, which every step copies to the device."""
        return sum(map(self._layer_bytes.__getitem__, self.host_layers))

    @cached_property
    def host_layers(self) -> list[int]:
        """The layers in the host's memory."""
        return layers_to_offload(self._layer_bytes, self.offloaded)

    @property
    def arriving(self) -> int:
        """Bytes of the layers that a step holds on their way: one that runs and the next."""
        return 2 * max(map(self._layer_bytes.__getitem__, self.host_layers), default=0)

    @property
    def row_state(self) -> int:
        """Bytes of each row's last token, length and block tables, of the sampler's pool, and of
        hidden states that prompts are scored from."""
        cache = CacheConfig(self.config.groups, self.block_size, (0,) * len(self.config.groups))
        rows, longest = self.schedule.max_num_seqs, self.schedule.max_model_len

        def empty() -> object:
            dtype = jnp.dtype(self.config.dtype)
            state = empty_state(
                cache, dtype, rows, self.config.vocab_size, longest,
                max_adjusted=self.schedule.sampler_rows, prompts=self.scored_prompts,
            )  # fmt: skip
            # Pipelines pack block tables with each plan.
            return state if self.layout.pp == 1 else state._replace(tables=None)

        return state_bytes(placed_state(jax.eval_shape(empty), self.placement, cache.groups))

    @property
    def scored_prompts(self) -> tuple[int, int]:
        """The shape of the hidden states that prompts are scored from, by token."""
        most, tile = self.schedule.max_num_batched_tokens, self.schedule.prefill_tile
        return whole_chunks(
            -(-most // tile) * tile, SCORED_AT_ONCE_ON_GPUS
        ), self.config.hidden_size

    @property
    def scratch(self) -> int:
        """Estimated scratch memory of the largest step, as engines estimate it."""
        return scratch_bytes(self.config, *largest_step(self.schedule), self.layout.tp)

    @property
    def cache(self) -> int:
        """Bytes that are left for the cache; below 0 if the model does not fit."""
        return self.usable - self.weights - self.arriving - self.row_state - self.scratch

    @cached_property
    def groups(self) -> list[tuple[CacheGroup, int]]:
        """The cache groups of the stage, with the bytes of one block on one device."""
        found = []
        for group in self.config.groups:
            layers = tuple(layer for layer in group.layers if layer in self.stage)
            own = CacheGroup(group.spec, layers)
            size = block_bytes_on_each(own, self.block_size, self.cache_dtype, self.placement)
            found.append((own, size))
        return [(group, size) for group, size in found if group.layers]

    @property
    def cache_dtype(self) -> jnp.dtype:
        """The type of the cache's arrays on a GPU."""
        return CODES[self.codes] if self.codes else jnp.dtype(self.config.dtype)

    @property
    def token_bytes(self) -> int:
        """Cache of one more token, inside all windows. States of recurrent layers do not grow."""
        growing = [size for group, size in self.groups if not group.spec.is_state]
        return sum(growing) // self.block_size

    def request_bytes(self, tokens: int) -> int:
        """The most cache that one request of this length holds."""
        in_flight = (OVERLAP_DEPTH + 1) * self.schedule.max_num_batched_tokens
        return sum(
            size * blocks_needed(group.spec, tokens, self.block_size, in_flight)
            for group, size in self.groups
        )

    def read_bytes(self, tokens: int) -> int:
        """Bytes of KV cache read for one token of a request with `tokens` cached tokens."""
        return sum(
            size
            if group.spec.is_state
            else size * min(tokens, group.spec.window or tokens) // self.block_size
            for group, size in self.groups
        )

    def held_once(self, tokens: int) -> int:
        """Bytes of a shared prefix of `tokens` tokens, kept once for all requests; groups with a
        window keep none."""
        blocks = tokens // self.block_size
        return sum(size * blocks for group, size in self.groups if group.spec.keeps_all)

    def read_once(self, rows: int, tokens: int) -> int:
        """Bytes of KV cache that a step saves because rows read a shared prefix together, as many
        rows as fit one query tile. Latent attention reads it per row."""
        tokens = tokens // shared_multiple() * shared_multiple()
        if tokens < least_shared():
            return 0
        saved, tp = 0, self.layout.tp // self.layout.dcp  # devices with different heads
        for group, size in self.groups:
            mixers = self.config.layers[group.layers[0]].mixers
            mixer = next((one for one in mixers if isinstance(one, AttentionConfig)), None)
            if not group.spec.keeps_all or mixer is None:
                continue
            group_heads = mixer.num_heads // tp // max(mixer.num_kv_heads // tp, 1)
            teams = -(-rows // rows_of_a_team(max(group_heads, 1)))
            saved += (rows - teams) * size * tokens // self.block_size
        return saved


class Declared(NamedTuple):
    """One parameter of a model, on any devices."""

    path: str
    axes: tuple[str | None, ...]
    shape: tuple[int, ...]
    dtype: jnp.dtype


@lru_cache(maxsize=2)
def declared(config: ModelConfig) -> tuple[Declared, ...]:
    """Every parameter as stored. Cached: making a large model's modules takes seconds, and many
    layouts are tried."""
    model = abstract_model(config)
    as_rounded(model)
    return tuple(
        Declared(path, one.get_metadata()["axes"], tuple(one.shape), jnp.dtype(one.dtype))
        for path, one in named_parameters(model)
    )


def largest_step(schedule: ScheduleConfig) -> tuple[int, int]:
    """Tokens and rows of logits of the largest step."""
    rows, batched = schedule.max_num_seqs, schedule.max_num_batched_tokens
    return batched + rows, rows + min(batched // schedule.prefill_tile, rows)


def gigabytes(count: float) -> str:
    """Bytes for people."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"
