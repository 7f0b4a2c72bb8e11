"""Sizes the KV cache of one replica: estimates, compiles the largest step, and settles the size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

import jengine
from jengine.config import CacheConfig, ModelConfig
from jengine.runner.disk.size_record import SizeRecord
from jengine.runner.guesser import LoadedGuesser
from jengine.runner.memory.cache_size import (
    BlockDemand,
    available_on_each,
    blocks_for,
    enough_on,
    free_on_each,
    overridden_blocks,
    planned_blocks,
    refuse_more_than,
    scratch_bytes,
    settled_blocks,
)
from jengine.runner.programs.compiler import Compiled, StepCompiler
from jengine.runner.programs.ledger import LedgerEntry
from jengine.runner.runner_config import RunnerConfig
from jengine.runner.step.attention_backend import cache_dtype_name
from jengine.runner.step.leaves import LeafOrder
from jengine.runner.step.program import Stages
from jengine.runner.step.state import (
    Held,
    StepState,
    block_bytes,
    empty_state,
    placed_state,
    state_bytes,
)
from jengine.runner.variants.buckets import Ladders
from sharding.placement import Placement


@dataclass(frozen=True)
class Sizing:
    """Sizes the cache and the state of one replica."""

    model: ModelConfig
    config: RunnerConfig
    order: LeafOrder
    agree_on_bytes: Callable[[int], int]
    guesser: LoadedGuesser | None = None

    @property
    def placement(self) -> Placement:
        """The replica's devices and their mesh."""
        return self.order.places.whole

    @property
    def device(self) -> jax.Device:
        """One of the replica's devices, which are of one kind."""
        return self.placement.mesh.local_devices[0]

    def settle(
        self, devices: Sequence[jax.Device]
    ) -> tuple[CacheConfig, tuple[Compiled, LedgerEntry]]:
        """The cache size and the largest program for it. `devices`: one per replica."""
        demands = self._demands()
        asked = self._asked_for(demands)
        if asked is not None:
            refuse_more_than(self.agree_on_bytes(free_on_each(devices)), demands, asked)
            cache = self._cache(asked)
            return cache, self._largest(cache)
        free = self.agree_on_bytes(available_on_each(devices, self.config.memory_share))
        available = free - state_bytes(self.state(self._cache((0,) * len(demands))))
        enough, record = enough_on(self.device.platform), self._record()
        recorded = self._agreed(record.read() if record else None)
        planned = planned_blocks(demands, available, self._estimated_scratch(), recorded, enough)
        cache = self._cache(planned)
        first = self._largest(cache)
        blocks = settled_blocks(demands, planned, first[1].temp_bytes, available, enough)
        if blocks != planned:
            cache = self._cache(blocks)
            first = self._largest(cache)
        if record is not None:
            record.write(blocks)
        return cache, first

    def _asked_for(self, demands: list[BlockDemand]) -> tuple[int, ...] | None:
        """The blocks that the user asked for, if any."""
        if self.config.num_gpu_blocks_override is not None:
            return overridden_blocks(demands, self.config.num_gpu_blocks_override)
        if self.config.kv_cache_memory_bytes is not None:
            return blocks_for(demands, self.config.kv_cache_memory_bytes)
        return None

    def _record(self) -> SizeRecord | None:
        """The file of the size, named after everything else that programs depend on."""
        config, mesh = self.config, self.placement.mesh
        return SizeRecord.of(
            (jengine.__version__, jax.__version__, self.device.device_kind, dict(mesh.shape)),
            (self.model, config.shapes, str(config.cache_dtype), config.demands),
            (config.memory_share, config.enable_prefix_caching),
        )

    def _agreed(self, recorded: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """The smallest counts that processes have recorded, or None if one has no record."""
        counts = recorded or (0,) * len(self.config.shapes.groups)
        agreed = tuple(self.agree_on_bytes(count) for count in counts)
        return agreed if all(agreed) else None

    def _estimated_scratch(self) -> int:
        largest = self.config.ladders.largest
        slots = self.config.shapes.num_slots(largest)
        return scratch_bytes(self.model, largest.num_tokens, slots, self.placement.ways("mlp"))

    def _demands(self) -> list[BlockDemand]:
        shapes, split = self.config.shapes, self.placement.ways("kv_heads")
        return [
            BlockDemand(
                group,
                block_bytes(group, shapes.block_size, self.config.cache_dtype) // split,
                *wanted,
            )
            for group, wanted in zip(shapes.groups, self.config.demands, strict=True)
        ]

    def _cache(self, blocks: tuple[int, ...]) -> CacheConfig:
        shapes = self.config.shapes
        return CacheConfig(
            shapes.groups, shapes.block_size, blocks, self.config.enable_prefix_caching,
            stored_as=cache_dtype_name(self.config.cache_dtype), lookahead=shapes.lookahead,
        )  # fmt: skip

    def _largest(self, cache: CacheConfig) -> tuple[Compiled, LedgerEntry]:
        return self.compiler(cache).compile(self.config.ladders.largest, self.config.tiers[-1])

    def compiler(self, cache: CacheConfig) -> StepCompiler:
        """Compiles steps for a cache of this size."""
        leaves, guesser = self.order.shapes(), self.guesser
        return StepCompiler(
            self.config.shapes,
            self.order.rebuild,
            leaves + (() if guesser is None else guesser.order.shapes()),
            self.state(cache),
            self.placement,
            stages_of(self.order, self.config.ladders),
            self.config.choices,
            None if guesser is None else guesser.program(len(leaves)),
        )

    def state(self, cache: CacheConfig) -> StepState:
        """The shapes of the state for a cache of this size, with shardings."""
        return placed_state(jax.eval_shape(lambda: self.empty_state(cache)), self.placement)

    def made_state(self, cache: CacheConfig) -> StepState:
        """The empty state, on the devices."""
        shardings = jax.tree.map(lambda x: x.sharding, self.state(cache))
        return jax.jit(lambda: self.empty_state(cache), out_shardings=shardings)()

    def empty_state(self, cache: CacheConfig) -> StepState:
        """An empty state with a cache of this size."""
        shapes = self.config.shapes
        return empty_state(
            cache,
            jnp.dtype(self.config.cache_dtype),
            shapes.max_rows,
            self.model.vocab_size,
            shapes.max_model_len,
            held_by(self.placement, self.config.ladders, self.model.hidden_size),
            shapes.max_adjusted,
            None if self.placement.is_split else shapes.attention,
            shapes.most_drafts if shapes.makes_guesses else 0,
        )


def stages_of(order: LeafOrder, ladders: Ladders) -> Stages | None:
    """The pipeline stages of a step, None without a pipeline."""
    layout = order.places.layout
    return None if layout.num_stages == 1 else Stages(layout, order.staged, ladders.largest)


def held_by(placement: Placement, ladders: Ladders, hidden: int) -> Held | None:
    """The activations between stages, for the largest bucket; None without a pipeline."""
    if placement.num_stages == 1:
        return None
    return Held(placement.num_stages, ladders.largest.num_tokens, hidden)
