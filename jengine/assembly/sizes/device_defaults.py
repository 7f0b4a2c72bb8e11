"""Default sizes by kind of device. Must not know the model."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax

from jengine.assembly.settings.groups import Groups
from jengine.runner.variants.buckets import FirstRungs
from pallas_kernels.fa4.rules import BULK_BLOCK

BLOCK_SIZE = 16
SHORTEST_TILE = 32
# Tile length if attention joins tiles.
JOINED_TILE = 8
# Plans in flight while one is read.
OVERLAP_DEPTH = 1


@dataclass(frozen=True)
class DeviceDefaults:
    """Default scheduler limits and warm-up variants for a kind of device."""

    max_num_seqs: int
    max_num_batched_tokens: int
    # Step variants compiled at start, the others when first needed. An accelerator compiles all but
    # greedy: the largest program sizes the cache, and sampling is nearly free there, so greedy
    # steps run in the sampled variant.
    variants: tuple[str, ...]
    # Whether prefill attention takes full tiles: long ones, or short ones that it joins.
    full_tiles: bool = False
    first_rungs: FirstRungs = field(default_factory=FirstRungs)
    # Whether requests are admitted before every program is compiled. Not on accelerators: XLA
    # autotunes matmuls by running candidates, which beside steps would measure noise and need
    # memory that the KV cache has taken, and loading a program makes XLA record all CUDA graphs
    # again.
    early_start: bool = False
    # Whether prefill chunks are cut at compiled sizes if padding would take longer.
    cut_prompts: bool = False


# Tokens of deterministic mode's only shape.
DETERMINISTIC_TOKENS = 64
DEVICE_DEFAULTS = {
    "cpu": DeviceDefaults(8, 512, ("greedy", "sampled"), early_start=True),
    "gpu": DeviceDefaults(
        256,
        8192,
        ("sampled", "adjusted", "full", "scored"),
        full_tiles=True,
        first_rungs=FirstRungs(8, 64, full_step=256),
        cut_prompts=True,
    ),
}


def device_defaults() -> DeviceDefaults:
    """Defaults for JAX's default backend."""
    return DEVICE_DEFAULTS["cpu" if jax.default_backend() == "cpu" else "gpu"]


def block_tokens(asked: Groups) -> int:
    """Tokens per cache block, summed over the devices that share it (decode context
    parallelism)."""
    usual = BULK_BLOCK if asked.steps.attention_backend == "fa4" else BLOCK_SIZE
    return (asked.cache.block_size or usual) * asked.parallel.decode_context_parallel_size
