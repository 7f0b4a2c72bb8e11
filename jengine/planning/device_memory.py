"""Bytes on one device: parameters, cache and the rest, from the engine's own declarations.

In: a model's shape and a layout. Out: Memory. The split of each array is read from the one table of
axes, on a mesh without devices. With stages: of the stage that holds most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh

from jengine.assembly.device_defaults import OVERLAP_DEPTH
from jengine.config import CacheConfig, CacheGroup, ModelConfig, ScheduleConfig
from jengine.kvcache.kinds import blocks_needed
from jengine.models.parameter import named_parameters
from jengine.models.stages import stage_layout
from jengine.planning.layout import Layout
from jengine.runner.memory.cache_size import scratch_bytes
from jengine.runner.step.state import block_bytes, empty_state, placed_state, state_bytes
from jengine.weights.abstract import abstract_model
from sharding.mesh import mesh_sizes
from sharding.placement import Placement


@dataclass(frozen=True)
class Part:
    """One parameter as one device holds it."""

    path: str
    axes: tuple[str | None, ...]
    elements: int
    itemsize: int

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
    layout: Layout
    schedule: ScheduleConfig
    block_size: int
    usable: int  # bytes of one device that the engine may take

    @cached_property
    def placement(self) -> Placement:
        """Placement of arrays on a mesh without devices: enough to ask for shard shapes."""
        heads = tuple(spec.kv_heads for spec in self.config.cache_specs)
        sizes = mesh_sizes(self.layout.tp, self.layout.pp, heads)
        kinds = (AxisType.Auto,) * len(sizes)
        return Placement(cast(Mesh, AbstractMesh(tuple(sizes.values()), tuple(sizes), kinds)))

    @cached_property
    def all_parts(self) -> list[Part]:
        """Every parameter as a device that has it holds it."""
        parts = []
        for path, parameter in named_parameters(abstract_model(self.config)):
            axes = parameter.get_metadata()["axes"]
            shape = self.placement.sharding(axes, parameter.shape).shard_shape(parameter.shape)
            parts.append(Part(path, axes, math.prod(shape), jnp.dtype(parameter.dtype).itemsize))
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
    def parts(self) -> list[Part]:
        """The parameters on one device."""
        outside = [part for part in self.all_parts if part.layer is None]
        return [*outside, *self._parts_in(self.stage)]

    def _parts_in(self, stage: Sequence[int]) -> list[Part]:
        return [part for part in self.all_parts if part.layer in stage]

    @property
    def weights(self) -> int:
        """Bytes of parameters."""
        return sum(part.bytes for part in self.parts)

    @property
    def row_state(self) -> int:
        """Bytes of each row's last token, length and block tables, and of the sampler's pool."""
        cache = CacheConfig(self.config.groups, self.block_size, (0,) * len(self.config.groups))
        rows, longest = self.schedule.max_num_seqs, self.schedule.max_model_len

        def empty() -> object:
            dtype = jnp.dtype(self.config.dtype)
            state = empty_state(
                cache, dtype, rows, self.config.vocab_size, longest,
                max_adjusted=self.schedule.sampler_rows,
            )  # fmt: skip
            # Pipelines pack block tables with each plan.
            return state if self.layout.pp == 1 else state._replace(tables=None)

        return state_bytes(placed_state(jax.eval_shape(empty), self.placement))

    @property
    def scratch(self) -> int:
        """Estimated scratch memory of the largest step, as engines estimate it."""
        return scratch_bytes(self.config, *largest_step(self.schedule), self.layout.tp)

    @property
    def cache(self) -> int:
        """Bytes that are left for the cache; below 0 if the model does not fit."""
        return self.usable - self.weights - self.row_state - self.scratch

    @cached_property
    def groups(self) -> list[tuple[CacheGroup, int]]:
        """The cache groups of the stage, with the bytes of one block on one device."""
        ways = self.placement.ways("kv_heads")
        found = []
        for group in self.config.groups:
            layers = tuple(layer for layer in group.layers if layer in self.stage)
            own = CacheGroup(group.spec, layers)
            found.append((own, block_bytes(own, self.block_size, self.config.dtype) // ways))
        return [(group, size) for group, size in found if group.layers]

    @property
    def token_bytes(self) -> int:
        """Cache of one more token, inside all windows."""
        return sum(size for _, size in self.groups) // self.block_size

    def request_bytes(self, tokens: int) -> int:
        """The most cache that one request of this length holds."""
        in_flight = (OVERLAP_DEPTH + 1) * self.schedule.max_num_batched_tokens
        return sum(
            size * blocks_needed(group.spec, tokens, self.block_size, in_flight)
            for group, size in self.groups
        )

    def read_bytes(self, tokens: int) -> int:
        """Cache that a request with so many tokens reads for its next one."""
        return sum(
            size * min(tokens, group.spec.window or tokens) // self.block_size
            for group, size in self.groups
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
