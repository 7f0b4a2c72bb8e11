"""Sizes a replica's KV cache: estimates scratch memory, compiles the largest step for it, and
corrects the size by what the compiler reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

import jengine
from jengine.config import CacheConfig, ModelConfig
from jengine.lora.stacks import AdapterStacks
from jengine.runner.disk.size_record import SizeRecord
from jengine.runner.loaded_drafter import LoadedDrafter
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
from jengine.runner.step.attention_backend import stored_as
from jengine.runner.step.group_arrays import block_bytes_on_each
from jengine.runner.step.joined import JoinedReplicas
from jengine.runner.step.leaves import LeafOrder
from jengine.runner.step.program import AdapterProgram, Stages
from jengine.runner.step.state import (
    HeldShape,
    StepState,
    empty_state,
    placed_state,
    state_bytes,
)
from jengine.runner.variants.buckets import Ladders, whole_chunks
from sharding.placement import Placement
from sharding.shared import shared


@dataclass(frozen=True)
class Sizing:
    """Sizes the KV cache and the step state of one replica."""

    model: ModelConfig
    config: RunnerConfig
    order: LeafOrder
    agree_on_bytes: Callable[[int], int]
    drafter: LoadedDrafter | None = None
    adapters: AdapterStacks | None = None
    joint: LeafOrder | None = None  # of all replicas, for joint steps
    # Collects the Triton kernels compiled, to load them before serving; None: not needed.
    kernels: set[Any] | None = None

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
    ) -> tuple[CacheConfig, list[tuple[Compiled, LedgerEntry]]]:
        """Return the cache config, and the programs compiled to size it: the largest ones or, with
        `early_start`, those that serve first. `devices`: one per replica."""
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
        blocks = settled_blocks(demands, planned, scratch_of(first), available, enough)
        if blocks != planned:
            cache = self._cache(blocks)
            first = self._largest(cache)
        if record is not None:
            record.write(blocks)
        return cache, first

    def without_weights(self) -> Sizing:
        """A copy that does not hold the draft model's parameters."""
        drafter = self.drafter
        return replace(self, drafter=None if drafter is None else drafter._replace(leaves=()))

    def cache_for(self, num_bytes: int, held: int) -> CacheConfig:
        """The cache config for this many bytes, replacing a cache that occupies `held` over all
        devices."""
        demands = self._demands()
        asked = blocks_for(demands, num_bytes)
        free = free_on_each([self.device]) + held // self.placement.mesh.size
        refuse_more_than(free, demands, asked)
        return self._cache(asked)

    def _asked_for(self, demands: list[BlockDemand]) -> tuple[int, ...] | None:
        """The number of blocks that the user configured, if any."""
        if self.config.num_gpu_blocks_override is not None:
            return overridden_blocks(demands, self.config.num_gpu_blocks_override)
        if self.config.kv_cache_memory_bytes is not None:
            return blocks_for(demands, self.config.kv_cache_memory_bytes)
        return None

    def _record(self) -> SizeRecord | None:
        """The size recorded for engines with equal programs; None without a compile cache."""
        config, mesh = self.config, self.placement.mesh
        return SizeRecord.of(
            (jengine.__version__, jax.__version__, self.device.device_kind, dict(mesh.shape)),
            (self.model, config.shapes, str(config.cache_dtype), config.demands),
            (config.memory_share, config.enable_prefix_caching),
            sorted(self.order.places.on_host),
        )

    def _agreed(self, recorded: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """Minimum over processes of the recorded block counts; None if one has no record."""
        counts = recorded or (0,) * len(self.config.shapes.groups)
        agreed = tuple(self.agree_on_bytes(count) for count in counts)
        return agreed if all(agreed) else None

    def _estimated_scratch(self) -> int:
        largest = self.config.ladders.largest
        slots = self.config.shapes.num_slots(largest)
        ways = self.placement.ways("mlp")
        activations = scratch_bytes(self.model, largest.num_tokens, slots, ways)
        return activations + self.order.arriving_bytes

    def _demands(self) -> list[BlockDemand]:
        shapes, dtype = self.config.shapes, self.config.cache_dtype
        return [
            BlockDemand(
                group,
                block_bytes_on_each(group, shapes.block_size, dtype, self.placement),
                *wanted,
            )
            for group, wanted in zip(shapes.groups, self.config.demands, strict=True)
        ]

    def _cache(self, blocks: tuple[int, ...]) -> CacheConfig:
        shapes, caches = self.config.shapes, self.config.enable_prefix_caching
        keeps_records = shapes.experts is not None and shapes.experts.returned
        # A copy in a pipeline would have to wait for all of its stages; drafters write ahead.
        copies = caches and not (shapes.packed_tables or shapes.most_drafts or self.joint)
        return CacheConfig(
            shapes.groups, shapes.block_size, blocks, caches,
            stored_as=stored_as(self.config.cache_dtype, self.placement, shapes.prompts),
            lookahead=shapes.lookahead,
            keeps_records=keeps_records, keeps_partial_blocks=copies and not keeps_records,
        )  # fmt: skip

    def _largest(self, cache: CacheConfig) -> list[tuple[Compiled, LedgerEntry]]:
        wanted = self.config.programs
        keys = wanted.first if self.config.early_start else wanted.largest
        compiler = self.compiler(cache)
        with ThreadPoolExecutor(len(keys), "compile") as pool:
            return list(pool.map(lambda key: compiler.compile(*key), keys))

    def compiler(self, cache: CacheConfig) -> StepCompiler:
        """Compiles steps for a cache of this size."""
        running, drafter = self.joint or self.order, self.drafter
        leaves, cross = running.shapes(), self.model.cross_encoder
        return StepCompiler(
            self.config.shapes,
            running.rebuild,
            leaves + (() if drafter is None else drafter.order.shapes()),
            self.state(cache),
            self.placement,
            stages_of(self.order, self.config.ladders),
            replace(self.config.choices, arriving=running.arriving),
            None if drafter is None else drafter.program(len(leaves)),
            splits=bool(self.config.host_processors),
            width=self.model.hidden_size,
            hidden=self.config.given_embeds,
            encoder=encoder_shape(self.model, self.config.encoder_tokens),
            cross_positions=0 if cross is None else cross.positions,
            adapters=self._adapter_program(),
            joined=None if self.joint is None else JoinedReplicas(self.joint.places.whole),
            kernels=self.kernels,
        )

    def _adapter_program(self) -> AdapterProgram | None:
        if self.adapters is None:
            return None
        return AdapterProgram(
            self.adapters.weights, self.adapters.shapes, self.adapters.implementation
        )

    def state(self, cache: CacheConfig) -> StepState:
        """The shapes of the state for a cache of this size, with shardings."""
        empty = jax.eval_shape(lambda: self.empty_state(cache))
        return placed_state(empty, self.placement, cache.groups)

    def state_maker(self, cache: CacheConfig) -> Callable[[], StepState]:
        """A compiled program that allocates the empty state."""
        given, state = self._state_arguments(cache), self.state(cache)
        shardings = jax.tree.map(lambda x: x.sharding, state)
        made = jax.jit(lambda: empty_state(*given), out_shardings=shardings)
        key = (empty_state, given, state) if self.placement.is_cpu else None
        return shared(key, lambda: made.lower().compile())

    def empty_state(self, cache: CacheConfig) -> StepState:
        """An empty state with a cache of this size."""
        return empty_state(*self._state_arguments(cache))

    def _state_arguments(self, cache: CacheConfig) -> tuple[Any, ...]:
        """Arguments of `empty_state`."""
        shapes, pooling = self.config.shapes, self.model.pooling
        return (
            cache,
            jnp.dtype(self.config.cache_dtype),
            shapes.max_rows,
            self.model.vocab_size,
            shapes.max_model_len,
            held_by(
                self.placement,
                self.config.ladders,
                self.model.hidden_size,
                ahead=shapes.most_ahead > 0,
            ),
            shapes.max_adjusted,
            None if self.placement.is_split else shapes.attention,
            shapes.most_drafts if shapes.makes_drafts else 0,
            shapes.most_drafts,
            self.model.rotates_by_planes,
            self.model.hidden_size if pooling is not None and pooling.sums_tokens else 0,
            self._prompts(),
        )

    def _prompts(self) -> tuple[int, int] | None:
        """Shape of the prompt hidden states that a forward leaves in the state for scoring and
        pooling, in whole chunks; None if no program reads them."""
        shapes = self.config.shapes
        tokens = shapes.prompt_tokens(self.config.ladders.largest)
        if not tokens or shapes.pooling == "vectors":
            return None
        return whole_chunks(tokens, shapes.scored_at_once), self.model.hidden_size


def scratch_of(programs: Iterable[tuple[Compiled, LedgerEntry]]) -> int:
    """Largest scratch memory of any program: programs run one at a time."""
    return max(entry.temp_bytes for _, entry in programs)


def encoder_shape(model: ModelConfig, tokens: int) -> tuple[int, int] | None:
    """Shape of the array of encoder embeddings; None without an encoder."""
    if model.cross_encoder is not None:
        return tokens, model.cross_width
    return None if model.vision is None else (tokens, model.vision.width)


def stages_of(order: LeafOrder, ladders: Ladders) -> Stages | None:
    """The layout of the pipeline stages, None without a pipeline."""
    layout = order.places.layout
    return None if layout.num_stages == 1 else Stages(layout, order.staged, ladders.largest)


def held_by(
    placement: Placement, ladders: Ladders, hidden: int, *, ahead: bool = False
) -> HeldShape | None:
    """Shape of the activations in flight between pipeline stages, for the largest bucket; None
    without a pipeline. `ahead`: whether tokens of images attend to later ones."""
    if placement.num_stages == 1:
        return None
    return HeldShape(placement.num_stages, ladders.largest.num_tokens, hidden, ahead)
