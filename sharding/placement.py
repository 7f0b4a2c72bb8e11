"""Puts arrays on devices by their logical axes, and runs functions on each device's shards."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sharding.axes import MESH_AXES, STAGES, Axes, partition_spec
from sharding.replicas import replica_meshes


@dataclass(frozen=True)
class Placement:
    """The sharding of arrays on a mesh."""

    mesh: Mesh
    # Called with every parameter before it is put on devices.
    observe: Callable[[str, Any], None] | None = field(default=None, compare=False)
    # Whether this is the view inside a stage, where arrays are the stage's shards already.
    inside_stage: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        """The mesh axes, and the number of shards along each."""
        sizes = dict(self.mesh.shape)
        return {**sizes, STAGES: 1} if self.inside_stage else sizes

    @property
    def is_split(self) -> bool:
        """Whether arrays are sharded at all."""
        return math.prod(self.sizes.values()) > 1

    @property
    def num_stages(self) -> int:
        """The number of pipeline stages."""
        return self.mesh.shape[STAGES]

    def in_stage(self) -> Placement:
        """This placement inside a function that `on_each_stage` calls."""
        return replace(self, inside_stage=True)

    def stage(self, index: int) -> Placement:
        """The placement on the devices of one stage."""
        axis = self.mesh.axis_names.index(STAGES)
        devices = np.take(self.mesh.devices, [index], axis)
        axes = {"axis_names": self.mesh.axis_names, "axis_types": self.mesh.axis_types}
        return replace(self, mesh=Mesh(devices, **axes))

    @property
    def processes(self) -> list[int]:
        """The processes whose devices these are."""
        return sorted({device.process_index for device in self.mesh.devices.flat})

    @property
    def replicas(self) -> tuple[Placement, ...]:
        """The placement of each data-parallel replica; only this one without data parallelism."""
        return tuple(replace(self, mesh=mesh) for mesh in replica_meshes(self.mesh))

    def part(self, array: jax.Array) -> jax.Array:
        """A replica's view of an array on the mesh of all replicas: the same memory."""
        assert isinstance(array.sharding, NamedSharding), "placed arrays have a named sharding"
        return seen_as(array, NamedSharding(self.mesh, array.sharding.spec))

    def spec(self, axes: Axes, shape: tuple[int, ...]) -> PartitionSpec:
        """The partition spec of an array with these logical axes."""
        return partition_spec(axes, shape, self.sizes)

    def sharding(self, axes: Axes, shape: tuple[int, ...]) -> NamedSharding:
        """The sharding of an array with these logical axes."""
        return NamedSharding(self.mesh, self.spec(axes, shape))

    def ways(self, axis: str) -> int:
        """The number of shards of a dimension with this logical axis, if it divides evenly."""
        return math.prod(self.mesh.shape[name] for name in MESH_AXES[axis])

    @property
    def everywhere(self) -> NamedSharding:
        """The sharding of a replicated array."""
        return NamedSharding(self.mesh, PartitionSpec())

    def __call__(self, path: str, axes: Axes, values: Readable) -> jax.Array:
        """Put one parameter on its devices, without a copy if it is there; `path` is for errors."""
        if self.observe is not None:
            self.observe(path, values)
        try:
            return put(values, self.sharding(axes, values.shape))
        except ValueError as error:
            raise ValueError(f"{path} {values.shape} does not fit its mesh: {error}") from error

    def held(self, array: jax.Array, axes: Axes) -> jax.Array:
        """Constrain the sharding of an array inside a compiled program."""
        if not self.is_split:
            return array
        spec = self.spec(axes, array.shape)
        # Inside a stage the mesh is the surrounding function's.
        where = spec if self.inside_stage else NamedSharding(self.mesh, spec)
        return jax.lax.with_sharding_constraint(array, where)

    def on_each_device(
        self, function: Callable[..., Any], inputs: Any, outputs: Any
    ) -> Callable[..., Any]:
        """Map the function over devices; each call gets the shards of one device.

        `inputs` and `outputs` are partition specs. The shards of the results must be those that the
        function would return for whole arrays.
        """
        if not self.is_split:
            return function
        names = {name for name, size in self.sizes.items() if size > 1}
        inside: dict[str, Any] = {"axis_names": names} if self.inside_stage else {"mesh": self.mesh}
        return jax.shard_map(
            function, in_specs=inputs, out_specs=outputs, check_vma=False, **inside
        )

    def on_each_stage(
        self, function: Callable[..., Any], inputs: Any, outputs: Any
    ) -> Callable[..., Any]:
        """Map the function over stages; each call gets the shards of one stage.

        Within a stage XLA inserts the collectives, as outside.
        """
        # Axes of size one are manual too: with one device per stage nothing is left to XLA.
        names = {name for name, size in self.mesh.shape.items() if name == STAGES or size == 1}
        return jax.shard_map(
            function, mesh=self.mesh, in_specs=inputs, out_specs=outputs, axis_names=names,
            check_vma=False,
        )  # fmt: skip


class Readable(Protocol):
    """An array, or a stored parameter of which parts can be read."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...

    def __getitem__(self, part: Any, /) -> Any: ...


def put(values: Readable, sharding: NamedSharding) -> jax.Array:
    """Put values on devices. Of stored values, this process reads each of its shards once."""
    if isinstance(values, jax.Array) and has_shards_of(values, sharding):
        return seen_as(values, sharding)
    spans_processes = isinstance(values, jax.Array) and not values.is_fully_addressable
    is_whole = isinstance(values, (jax.Array, np.ndarray)) or sharding.is_fully_replicated
    if spans_processes or (is_whole and sharding.is_fully_addressable):
        given = values if isinstance(values, jax.Array) else np.asarray(values)
        return jax.device_put(given, sharding)
    shards: dict[tuple[tuple[int, int, int], ...], Any] = {}

    def shard(part: Any) -> Any:
        key = tuple(one.indices(size) for one, size in zip(part, values.shape, strict=True))
        if key not in shards:  # replicas have the same one
            shards[key] = values[part]
        return shards[key]

    return jax.make_array_from_callback(values.shape, sharding, shard, dtype=values.dtype)


def has_shards_of(array: jax.Array, sharding: NamedSharding) -> bool:
    """Whether each device already holds its shard, whatever the order of devices in the mesh."""
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
    """The same memory under another sharding, of all its devices or of some."""
    if array.sharding == sharding:
        return array
    data = {shard.device: shard.data for shard in array.addressable_shards}
    own = [data[device] for device in sharding.mesh.devices.flat]
    return jax.make_array_from_single_device_arrays(array.shape, sharding, own)
