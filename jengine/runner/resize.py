"""Resizes the KV cache of a loaded model, keeping the contents of the blocks that remain.

In: bytes. Out: the number of blocks per group. Recompiles only programs whose shapes depend on the
cache's size: the steps, and the one that allocates the empty state. Called between steps, when no
request has blocks; after an error nothing has changed.

Running requests are preempted before and resume from cached blocks: blocks below the new number
keep their id, content and LRU position. Returning to an earlier size compiles its programs again,
from XLA's disk cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
from jax import Array

from jengine.config import CacheConfig
from jengine.runner.sizing import Sizing

if TYPE_CHECKING:
    from jengine.runner.loaded_model import LoadedModel


class Resizing:
    """KV cache resizing of one replica."""

    def __init__(self, sizing: Sizing, cache: CacheConfig) -> None:
        self._sizing = sizing.without_weights()
        self.cache = cache

    def resize(self, loaded: LoadedModel, num_bytes: int) -> list[int]:
        """Resize the cache to `num_bytes`. Returns the blocks per group."""
        loaded.wait_until_warm()
        if loaded.late is not None:  # it compiles for the old size
            loaded.late.finish()
        sizing = self._sizing
        cache = sizing.cache_for(num_bytes, held=sum(x.nbytes for x in arrays_of(loaded)))
        if cache.num_blocks != self.cache.num_blocks:
            compiler = sizing.compiler(cache)
            programs = loaded.programs.compiled_by(compiler)
            maker = sizing.state_maker(cache)
            made = maker()
            kept = jax.tree.map(with_blocks_of, made.caches, loaded.state.caches)
            loaded.state = made._replace(caches=kept)
            loaded.programs.use(compiler, programs)
            loaded.use_maker(maker)
            self.cache = cache
        return list(cache.num_blocks)


def arrays_of(loaded: LoadedModel) -> list[Array]:
    return jax.tree.leaves(loaded.state.caches)


def with_blocks_of(made: Array, old: Array) -> Array:
    """Copy the old array's blocks into the new array, as far as both have them. Donates `made`."""
    return jax.jit(copied, donate_argnums=0, out_shardings=made.sharding)(made, old)


def copied(made: Array, old: Array) -> Array:
    """`made` overwritten with the leading part that it shares with `old`."""
    common = tuple(slice(min(sizes)) for sizes in zip(made.shape, old.shape, strict=True))
    return made.at[common].set(old[common])
