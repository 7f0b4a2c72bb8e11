"""Small programs that gather, scatter and copy blocks of a cache group on the device.

In: the arrays of a group, block ids. Out: blocks `[blocks, layers, ...]`; or the arrays, donated,
with blocks written. One program per padded number of blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from jengine.config import CacheGroup
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.step.group_arrays import each_array
from pallas_kernels.shapes import next_power_of_two

T = TypeVar("T")
COUNTS = (4, 16, 64, 256)
# Block id of padded writes, which are dropped.
OUTSIDE = np.iinfo(np.int32).max


def parts(blocks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Split block ids into ranges of at most the largest program's size."""
    for begin in range(0, len(blocks), COUNTS[-1]):
        yield begin, min(begin + COUNTS[-1], len(blocks))


def padded_count(count: int) -> int:
    """Smallest program size that holds `count` blocks."""
    return next(size for size in COUNTS if size >= count)


class BlockPrograms:
    """Block programs of one cache group, compiled on first use."""

    def __init__(self, group: CacheGroup, arrays: Sequence[Array]) -> None:
        self.axis = 1 if group.spec.shares_heads or group.spec.is_state else 2
        self.shapes = [without(array.shape, self.axis) for array in arrays]
        self.dtypes = [np.dtype(array.dtype) for array in arrays]
        self.shardings = [blocks_first(array.sharding, array.ndim, self.axis) for array in arrays]
        self._read = jax.jit(self._taken, out_shardings=tuple(self.shardings))
        whole = tuple(array.sharding for array in arrays)
        self._write = jax.jit(self._put, donate_argnums=0, out_shardings=whole)
        self._copy = jax.jit(self._copied, donate_argnums=0, out_shardings=whole)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all arrays and devices."""
        return sum(
            int(np.prod(shape)) * dtype.itemsize
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        )

    def read(self, arrays: tuple[Array, ...], blocks: Sequence[int]) -> tuple[Array, ...]:
        """Gather at most COUNTS[-1] blocks into new arrays, padded to a program's size."""
        numbers = np.zeros(padded_count(len(blocks)), np.int32)
        numbers[: len(blocks)] = blocks
        return self._read(arrays, numbers)

    def write(
        self, arrays: tuple[Array, ...], blocks: Sequence[int], values: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        """Scatter (padded) `values` into these blocks. Donates the given arrays."""
        numbers = np.full(values[0].shape[0], OUTSIDE, np.int32)
        numbers[: len(blocks)] = blocks
        return self._write(arrays, numbers, values)

    def copy(
        self, arrays: tuple[Array, ...], sources: Sequence[int], targets: Sequence[int]
    ) -> tuple[Array, ...]:
        """Copy blocks to others; all are read before any is written. Donates the given arrays."""
        padded = max(next_power_of_two(len(sources)), COUNTS[0])
        numbers = np.full((2, padded), OUTSIDE, np.int32)
        numbers[:, : len(sources)] = sources, targets
        return self._copy(arrays, *numbers)

    def _copied(
        self, arrays: tuple[Array, ...], sources: Array, targets: Array
    ) -> tuple[Array, ...]:
        return self._put(arrays, targets, self._taken(arrays, sources))

    def _taken(self, arrays: tuple[Array, ...], blocks: Array) -> tuple[Array, ...]:
        return tuple(
            jnp.moveaxis(jnp.take(array, blocks, axis=self.axis, mode="clip"), self.axis, 0)
            for array in arrays
        )

    def _put(
        self, arrays: tuple[Array, ...], blocks: Array, values: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        where = (*(slice(None),) * self.axis, blocks)
        return tuple(
            array.at[where].set(jnp.moveaxis(value, 0, self.axis), mode="drop")
            for array, value in zip(arrays, values, strict=True)
        )


def programs_of(loaded: LoadedModel) -> list[BlockPrograms]:
    """The programs of each cache group of a model."""
    groups = loaded.shapes.groups
    return [
        BlockPrograms(group, each_array(cache))
        for group, cache in zip(groups, loaded.state.caches, strict=True)
    ]


def group_arrays(loaded: LoadedModel, group: int) -> tuple[Array, ...]:
    return each_array(loaded.state.caches[group])


def use_arrays(loaded: LoadedModel, group: int, arrays: tuple[Array, ...]) -> None:
    """Install these arrays as a group's cache."""
    caches = list(loaded.state.caches)
    caches[group] = arrays if isinstance(caches[group], tuple) else arrays[0]
    loaded.state = loaded.state._replace(caches=tuple(caches))


def without(shape: tuple[T, ...], axis: int) -> tuple[T, ...]:
    """A shape or spec without one of its dimensions."""
    return (*shape[:axis], *shape[axis + 1 :])


def blocks_first(sharding: jax.sharding.Sharding, ndim: int, axis: int) -> NamedSharding:
    """Sharding with the (never sharded) block axis moved first."""
    assert isinstance(sharding, NamedSharding), "caches have a named sharding"
    spec = (*sharding.spec, *(None,) * (ndim - len(sharding.spec)))
    return NamedSharding(sharding.mesh, PartitionSpec(None, *without(spec, axis)))
