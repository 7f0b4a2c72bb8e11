"""Arrays put where their logical axes say, and functions run on each device's part of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sharding.axes import MESH_AXES, Axes, partition_spec
from sharding.replicas import replica_meshes


@dataclass(frozen=True)
class Placement:
    """Where arrays lie on a mesh."""

    mesh: Mesh
    # Told of every parameter before it is placed.
    observe: Callable[[str, Any], None] | None = field(default=None, compare=False)

    @property
    def processes(self) -> list[int]:
        """The processes whose devices these are."""
        return sorted({device.process_index for device in self.mesh.devices.flat})

    @property
    def replicas(self) -> tuple[Placement, ...]:
        """The same for each data-parallel replica; one that is this where there are no others."""
        return tuple(replace(self, mesh=mesh) for mesh in replica_meshes(self.mesh))

    def part(self, array: jax.Array) -> jax.Array:
        """An array of the mesh of all replicas as this one sees it: the same memory."""
        assert isinstance(array.sharding, NamedSharding), "placed arrays lie on a mesh"
        return seen_as(array, NamedSharding(self.mesh, array.sharding.spec))

    def spec(self, axes: Axes, shape: tuple[int, ...]) -> PartitionSpec:
        """How an array with these logical axes is split."""
        return partition_spec(axes, shape, self.mesh.shape)

    def sharding(self, axes: Axes, shape: tuple[int, ...]) -> NamedSharding:
        """Where an array with these logical axes lies."""
        return NamedSharding(self.mesh, self.spec(axes, shape))

    def ways(self, axis: str) -> int:
        """Into how many parts a dimension with this logical axis is split, if it can be."""
        return math.prod(self.mesh.shape[name] for name in MESH_AXES[axis])

    @property
    def everywhere(self) -> NamedSharding:
        """Where an array lies that every device holds whole."""
        return NamedSharding(self.mesh, PartitionSpec())

    def __call__(self, path: str, axes: Axes, values: np.ndarray | jax.Array) -> jax.Array:
        """Place one parameter, without a copy if it lies there already; `path` is for errors."""
        if self.observe is not None:
            self.observe(path, values)
        try:
            return put(values, self.sharding(axes, np.shape(values)))
        except ValueError as error:
            raise ValueError(f"{path} {np.shape(values)} does not fit its mesh: {error}") from error

    def held(self, array: jax.Array, axes: Axes) -> jax.Array:
        """The array inside a compiled program, split in this way and no other."""
        if self.mesh.size == 1:
            return array
        return jax.lax.with_sharding_constraint(array, self.sharding(axes, array.shape))

    def on_each_device(
        self, function: Callable[..., Any], inputs: Any, outputs: Any
    ) -> Callable[..., Any]:
        """The function, called on every device with its own parts of the arrays.

        `inputs` and `outputs` are partition specs. The parts of the results must be those that the
        function would give on whole arrays.
        """
        if self.mesh.size == 1:
            return function
        return jax.shard_map(
            function, mesh=self.mesh, in_specs=inputs, out_specs=outputs, check_vma=False
        )


def put(values: np.ndarray | jax.Array, sharding: NamedSharding) -> jax.Array:
    """The values where they belong; a process touches no other parts than its devices hold."""
    spans_processes = isinstance(values, jax.Array) and not values.is_fully_addressable
    if isinstance(values, jax.Array) and lies_as(values, sharding):
        return seen_as(values, sharding)
    if sharding.is_fully_addressable or spans_processes:
        return jax.device_put(values, sharding)
    return jax.make_array_from_callback(np.shape(values), sharding, lambda part: values[part])


def lies_as(array: jax.Array, sharding: NamedSharding) -> bool:
    """Whether each device holds what it should already, in whatever order a mesh names them."""
    if not array.is_fully_addressable or array.sharding.device_set != sharding.device_set:
        return False
    there, wanted = (
        {
            device: [part.indices(size) for part, size in zip(parts, array.shape, strict=True)]
            for device, parts in one.devices_indices_map(array.shape).items()
        }
        for one in (array.sharding, sharding)
    )
    return there == wanted


def seen_as(array: jax.Array, sharding: NamedSharding) -> jax.Array:
    """The same memory, of all its devices or of some, under a sharding that fits it."""
    if array.sharding == sharding:
        return array
    data = {shard.device: shard.data for shard in array.addressable_shards}
    own = [data[device] for device in sharding.mesh.devices.flat]
    return jax.make_array_from_single_device_arrays(array.shape, sharding, own)
