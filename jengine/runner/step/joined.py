"""Joint steps: data-parallel replicas in programs over all their devices.

Each replica's state, input and results are shards of joined arrays along the first axis, so joining
and splitting copy nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from sharding.axes import DATA
from sharding.placement import Placement

EVERYWHERE, BY_REPLICA = PartitionSpec(), PartitionSpec(DATA)


@dataclass(frozen=True)
class JoinedReplicas:
    """Data-parallel replicas that step together, and their joined arrays."""

    placement: Placement

    @property
    def count(self) -> int:
        return self.placement.mesh.shape[DATA]

    def mapped(self, body: Callable[..., Any], leaves: Sequence[Any]) -> Callable[..., Any]:
        """Map a one-replica program (leaves, owned fields, read fields, input) over replicas."""
        given = tuple(BY_REPLICA if is_apart(leaf.sharding) else EVERYWHERE for leaf in leaves)
        return self.placement.on_each_replica(
            body, (given, *[BY_REPLICA] * 3), (BY_REPLICA, BY_REPLICA)
        )

    def shape(self, own: Any) -> jax.ShapeDtypeStruct:
        """Shape of joined arrays, given one replica's."""
        whole = (self.count * own.shape[0], *own.shape[1:])
        return jax.ShapeDtypeStruct(whole, own.dtype, sharding=self._sharding(own))

    @property
    def by_replica(self) -> NamedSharding:
        """Sharding by replica, replicated within each."""
        return NamedSharding(self.placement.mesh, BY_REPLICA)

    def join(self, own: Sequence[Array]) -> Array:
        """Combine the replicas' arrays into one global array, without copying."""
        like = self.shape(own[0])
        shards = [shard.data for array in own for shard in array.addressable_shards]
        return jax.make_array_from_single_device_arrays(
            like.shape, self._sharding(own[0]), shards, dtype=like.dtype
        )

    def given(self, own: Sequence[Any]) -> Any:
        """Concatenate the replicas' host inputs, and put each on its replica's devices."""
        return jax.tree.map(lambda *x: jax.device_put(np.concatenate(x), self.by_replica), *own)

    def parts(self, whole: Array) -> list[Array]:
        """Split a joined array into the replicas' arrays, without copying."""
        assert isinstance(whole.sharding, NamedSharding), "steps return named shardings"
        first, *others = whole.sharding.spec
        names = tuple(name for name in axes_of(first) if name != DATA)
        spec = PartitionSpec(names or None, *others)
        shape = (whole.shape[0] // self.count, *whole.shape[1:])
        data = {shard.device: shard.data for shard in whole.addressable_shards}
        return [
            jax.make_array_from_single_device_arrays(
                shape,
                NamedSharding(replica.mesh, spec),
                [data[device] for device in replica.mesh.devices.flat],
                dtype=whole.dtype,
            )
            for replica in self.placement.replicas
        ]

    def _sharding(self, own: Any) -> NamedSharding:
        first, *others = own.sharding.spec or (None,)
        return NamedSharding(self.placement.mesh, PartitionSpec((DATA, *axes_of(first)), *others))


def axes_of(entry: Any) -> tuple[str, ...]:
    """Mesh axes of one entry of a partition spec."""
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def is_apart(sharding: NamedSharding) -> bool:
    """Whether replicas hold different shards of an array."""
    return bool(sharding.spec) and DATA in axes_of(sharding.spec[0])
