"""Sizes that suit a kind of device, where the user asks for none. No model is known here."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax

from jengine.assembly.settings.groups import Groups
from jengine.runner.variants.buckets import FirstRungs
from pallas_kernels.fa4.rules import BULK_BLOCK

BLOCK_SIZE = 16
SHORTEST_TILE = 32
# Where attention joins tiles.
JOINED_TILE = 8
# Plans that may be in flight while one is read.
OVERLAP_DEPTH = 1


@dataclass(frozen=True)
class DeviceDefaults:
    """Default scheduler limits and warm-up variants for a kind of device."""

    max_num_seqs: int
    max_num_batched_tokens: int
    # Step variants compiled at the start; the others when they are first needed. An accelerator
    # compiles all but greedy: the largest program sizes the cache, and sampling costs next to
    # nothing there, so greedy steps run in the sampled variant.
    variants: tuple[str, ...]
    # Whether prompt tokens come in so many that they fill a program of prefill attention: in long
    # tiles, or in short ones that attention joins.
    full_tiles: bool = False
    first_rungs: FirstRungs = field(default_factory=FirstRungs)
    # Whether requests are admitted before every program is compiled. An accelerator chooses the
    # fastest matmuls by running candidates: beside steps it would measure noise, in memory that the
    # KV cache has taken, and each program that is loaded has XLA record all CUDA graphs again.
    early_start: bool = False
    # Whether prompts are cut at a compiled size where padding would take longer.
    cut_prompts: bool = False


# Tokens of the one shape that deterministic mode compiles.
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
    """The sizes for the device that JAX uses."""
    return DEVICE_DEFAULTS["cpu" if jax.default_backend() == "cpu" else "gpu"]


def block_tokens(asked: Groups) -> int:
    """Tokens per cache block, over all devices that share the block."""
    usual = BULK_BLOCK if asked.steps.attention_backend == "fa4" else BLOCK_SIZE
    return (asked.cache.block_size or usual) * asked.parallel.decode_context_parallel_size
