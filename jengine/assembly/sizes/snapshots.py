"""Where the states of recurrent layers are kept for prompts that begin alike.

In: the user's settings. Out: cache specs that say every how many tokens a state is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from jengine.assembly.settings.groups import CacheSettings
from jengine.config import CacheSpec
from jengine.errors import ConfigError

# Tokens between kept states by default. A prompt longer than this takes one step more.
SNAPSHOT_EVERY = 256
# Kept states for each running request for which there is to be room.
KEPT_FOR_EACH = 2


def snapshot_distance(asked: CacheSettings, block_size: int) -> int | None:
    """Every how many tokens a state is kept; None: never."""
    given = asked.mamba_block_size
    if given is not None and given % block_size:
        raise ConfigError(
            f"mamba_block_size={given}: expected a multiple of block_size={block_size}, because "
            "states are kept where a block of the KV cache ends."
        )
    if asked.mamba_cache_mode == "none" or not asked.enable_prefix_caching:
        return None
    return given or -(-SNAPSHOT_EVERY // block_size) * block_size


def with_snapshots(
    layer_specs: Iterable[tuple[CacheSpec, ...]], every: int | None
) -> tuple[tuple[CacheSpec, ...], ...]:
    """The specs of each layer; those of states say where states are kept."""

    def kept(spec: CacheSpec) -> CacheSpec:
        return replace(spec, snapshot_every=every) if spec.is_state else spec

    return tuple(tuple(map(kept, specs)) for specs in layer_specs)


def kept_states(spec: CacheSpec) -> int:
    """Units of a group that are useful for each request beside those that it needs."""
    return KEPT_FOR_EACH if spec.snapshot_every is not None else 0
