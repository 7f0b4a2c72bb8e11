"""Sleep mode: offloads or drops a loaded model's parameters, and drops its KV cache and step state.

In: tags to put to sleep or wake. Out: tags asleep. Called between steps, when no request has blocks
of the KV cache.

The engine drains the steps in flight and preempts all requests, which keep their tokens; then each
worker frees its state and offloads its weights (`executor/calls.py`). Steps stay paused until all
is awake, so the scheduler need not know. Compiled programs are kept, so waking compiles nothing.
LoRA slots are dropped, and refilled from host memory. On CPUs, level 1 leaves the weights where
they are. Measured with the demo model and a cache of 400 MB on XLA's attention: 957 MB resident and
404 MB of live arrays awake, 557 MB and 4 MB asleep, 960 MB and 404 MB awake again.

On GPUs freed memory returns to JAX's pool, which serves the same process and never shrinks. With
`XLA_PYTHON_CLIENT_ALLOCATOR=platform` there is no pool, so other processes get the memory; set
`kv_cache_memory_bytes` then, as there is no limit to size the cache from. Allocations take longer.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import jax

from jengine.errors import RequestError
from jengine.runner.report_types import CACHE, WEIGHTS
from sharding.placement import HOST

if TYPE_CHECKING:
    from jengine.runner.loaded_model import LoadedModel
    from jengine.runner.step.leaves import Leaves


class Kept(NamedTuple):
    """Parameters offloaded to host memory, with their device shardings."""

    leaves: Leaves
    shardings: tuple[jax.sharding.Sharding, ...]

    @classmethod
    def of(cls, leaves: Leaves) -> Kept:
        """Copy to host memory. On CPUs the arrays themselves are kept."""
        shardings = tuple(leaf.sharding for leaf in leaves)
        if not leaves or is_host(leaves[0]):
            return cls(leaves, shardings)
        return cls(moved(leaves, [one.with_memory_kind(HOST) for one in shardings]), shardings)

    def on_devices(self) -> Leaves:
        return moved(self.leaves, self.shardings)


@dataclass
class Asleep:
    """Sleeping tags, and parameters kept on the host."""

    tags: set[str] = field(default_factory=set)
    weights: Kept | None = None  # None: dropped, or awake
    drafter: Kept | None = None


def put_to_sleep(loaded: LoadedModel, level: int, tags: Collection[str]) -> list[str]:
    """Free what the tags name. Level 1 keeps parameters in host memory, level 2 drops them (never a
    draft model's). Returns all sleeping tags."""
    asleep = loaded.asleep
    if WEIGHTS in tags and WEIGHTS not in asleep.tags:
        asleep.weights = Kept.of(loaded.leaves)
        # Weight updates exclude a drafter's: these are kept at every level. Adapters are in host
        # memory anyway.
        asleep.drafter = Kept.of(loaded.drafter_leaves)
        if loaded.adapters is not None:
            loaded.adapters.drop()
        loaded.leaves, loaded.drafter_leaves = (), ()
        asleep.tags.add(WEIGHTS)
    if WEIGHTS in tags and level >= 2:
        asleep.weights = None
    if CACHE in tags and CACHE not in asleep.tags:
        loaded.drop_state()
        asleep.tags.add(CACHE)
    return sorted(asleep.tags)


def wake(loaded: LoadedModel, tags: Collection[str]) -> list[str]:
    """Restore what the tags name; dropped parameters stay asleep until replaced. Returns the tags
    still asleep."""
    asleep = loaded.asleep
    if WEIGHTS in tags and asleep.weights is not None:
        take_weights(loaded, asleep.weights.on_devices())
    if CACHE in tags and CACHE in asleep.tags:
        loaded.make_state()
        asleep.tags.discard(CACHE)
    return sorted(asleep.tags)


def take_weights(loaded: LoadedModel, leaves: Leaves) -> None:
    """Install parameters, and restore those of the draft model and the LoRA slots."""
    asleep = loaded.asleep
    loaded.leaves = leaves
    if asleep.drafter is not None:
        loaded.drafter_leaves = asleep.drafter.on_devices()
    if loaded.adapters is not None:
        loaded.adapters.fill()
    asleep.weights = asleep.drafter = None
    asleep.tags.discard(WEIGHTS)


def reload(loaded: LoadedModel) -> list[str]:
    """Reload parameters from the model's folder."""
    if loaded.read_weights is None:
        raise RequestError(
            "reload_weights: this engine was made of live parameters, so there is no folder to "
            "read them from. Give new ones with update_params."
        )
    take_weights(loaded, loaded.read_weights(loaded.leaves or None))
    return sorted(loaded.asleep.tags)


def is_host(leaf: jax.Array) -> bool:
    """Whether an array is on a CPU device."""
    return next(iter(leaf.devices())).platform == "cpu"


def moved(leaves: Leaves, shardings: Collection[jax.sharding.Sharding]) -> Leaves:
    """Copy to these shardings and wait, so that the sources can be freed."""
    found = tuple(jax.device_put(leaf, to) for leaf, to in zip(leaves, shardings, strict=True))
    jax.block_until_ready(found)
    return found
