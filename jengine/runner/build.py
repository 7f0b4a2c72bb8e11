"""Builds a runner: splits the model, sizes the cache, compiles the steps, allocates the state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jengine.config import CacheConfig, ModelConfig
from jengine.runner.buckets import Bucket, Ladders, StepShapes
from jengine.runner.features import Features
from jengine.runner.ledger import LedgerEntry
from jengine.runner.memory import (
    BlockDemand,
    affordable_blocks,
    available_bytes,
    wished_blocks,
)
from jengine.runner.programs import Compiled, Programs, ProgressBar, StepCompiler
from jengine.runner.runner import Runner
from jengine.runner.state import (
    StepState,
    block_bytes,
    empty_state,
    placed_state,
    state_bytes,
)
from sharding.placement import Placement

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunnerConfig:
    """The runner's own settings."""

    shapes: StepShapes
    ladders: Ladders
    tiers: tuple[Features, ...]  # variants to compile in warm-up, cheapest first
    late_tiers: tuple[Features, ...]  # variants compiled when first needed
    cache_dtype: Any
    kv_cache_memory_bytes: int | None
    memory_share: float
    demands: tuple[tuple[int, int], ...]  # a group: (most useful, at least) blocks
    enable_prefix_caching: bool = True
    warm_up: bool = True
    strict: bool = False


def split_model(model: nnx.Module) -> tuple[tuple[jax.Array, ...], Any]:
    """A flat tuple of parameter leaves, and the function that rebuilds the model from it."""
    graph, parameters = nnx.split(model)
    leaves, tree = jax.tree.flatten(parameters)

    def rebuild(leaves: tuple[jax.Array, ...]) -> nnx.Module:
        return nnx.merge(graph, jax.tree.unflatten(tree, leaves))

    return tuple(leaves), rebuild


def build_runner(
    model: nnx.Module,
    model_config: ModelConfig,
    config: RunnerConfig,
    placement: Placement,
    bar: ProgressBar,
    agree_on_bytes: Callable[[int], int] = int,
) -> tuple[Runner, CacheConfig]:
    """A runner ready to serve, and the cache it has room for.

    `agree_on_bytes` turns the memory available here into what is available everywhere.
    """
    leaves, rebuild = split_model(model)
    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), leaves
    )
    sizing = Sizing(model_config, config, abstract, rebuild, placement, agree_on_bytes)
    compiler, cache, first = sizing.settle(placement.mesh.local_devices[0])
    programs = Programs(compiler, [*config.tiers, *config.late_tiers], strict=config.strict)
    programs.keep(*first)
    shardings = jax.tree.map(lambda x: x.sharding, compiler.state)
    state = jax.jit(lambda: sizing.empty_state(cache), out_shardings=shardings)()
    runner = Runner(leaves, state, programs, config.shapes, config.ladders, model_config.vocab_size)
    if config.warm_up:
        programs.warm_up(wanted_programs(config), bar)
        if any(tier.sampling.adjust for tier in config.tiers):
            runner.warm_up_admission()
    return runner, cache


def wanted_programs(config: RunnerConfig) -> Iterator[tuple[Bucket, Features]]:
    """Every program of warm-up: all buckets in the variants asked for."""
    for tier in config.tiers:
        # Scoring prompts differs from the full variant only where prompt tokens run.
        unscored = any(
            other.sampling == tier.sampling and other.prompt_logprobs is None
            for other in config.tiers
        )
        for bucket in config.ladders.buckets():
            runs_prompts = bucket.prefill_tokens or config.shapes.one_segment
            if tier.prompt_logprobs is None or runs_prompts or not unscored:
                yield bucket, tier


@dataclass(frozen=True)
class Sizing:
    """Finds out how many blocks fit, by compiling the largest step."""

    model: ModelConfig
    config: RunnerConfig
    leaves: Any
    rebuild: Any
    placement: Placement
    agree_on_bytes: Callable[[int], int]

    def settle(
        self, device: jax.Device
    ) -> tuple[StepCompiler, CacheConfig, tuple[Compiled, LedgerEntry]]:
        """The compiler for the final cache size, that size, and the program that proved it."""
        demands = self._demands()
        wished = wished_blocks(demands, self.config.kv_cache_memory_bytes)
        available = self.agree_on_bytes(available_bytes(device, self.config.memory_share))
        cache = self._cache(wished)
        first = self._largest(cache)
        if self.config.kv_cache_memory_bytes is None:
            other = state_bytes(self.state(self._cache((0,) * len(wished))))
            blocks = affordable_blocks(demands, wished, first[1].temp_bytes + other, available)
            if blocks != wished:
                cache = replace(cache, num_blocks=blocks)
                first = self._largest(cache)
        return self._compiler(cache), cache, first

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
            shapes.groups, shapes.block_size, blocks, self.config.enable_prefix_caching
        )

    def _largest(self, cache: CacheConfig) -> tuple[Compiled, LedgerEntry]:
        return self._compiler(cache).compile(self.config.ladders.largest, self.config.tiers[-1])

    def _compiler(self, cache: CacheConfig) -> StepCompiler:
        return StepCompiler(
            self.config.shapes, self.rebuild, self.leaves, self.state(cache), self.placement
        )

    def state(self, cache: CacheConfig) -> StepState:
        """The shapes of the state for a cache of this size, and where they lie."""
        return placed_state(jax.eval_shape(lambda: self.empty_state(cache)), self.placement)

    def empty_state(self, cache: CacheConfig) -> StepState:
        """The state for a cache of this size, with nothing in it."""
        shapes = self.config.shapes
        return empty_state(
            cache,
            jnp.dtype(self.config.cache_dtype),
            shapes.max_rows,
            self.model.vocab_size,
            shapes.max_model_len,
        )
