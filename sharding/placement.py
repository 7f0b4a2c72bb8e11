"""Arrays put where their logical axes say, and functions run on each device's part of them."""

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
    """Where arrays lie on a mesh."""

    mesh: Mesh
    # Told of every parameter before it is placed.
    observe: Callable[[str, Any], None] | None = field(default=None, compare=False)
    # Whether this is the view from inside a stage, whose arrays are its own parts already.
    inside_stage: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        """The mesh's axes, and over how many parts arrays are split along each."""
        sizes = dict(self.mesh.shape)
        return {**sizes, STAGES: 1} if self.inside_stage else sizes

    @property
    def is_split(self) -> bool:
        """Whether there is more than one part."""
        return math.prod(self.sizes.values()) > 1

    @property
    def num_stages(self) -> int:
        """Parts that the layers are split into."""
        return self.mesh.shape[STAGES]

    def in_stage(self) -> Placement:
        """This placement as a function sees it that `on_each_stage` calls."""
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
        """The same for each data-parallel replica; one that is this where there are no others."""
        return tuple(replace(self, mesh=mesh) for mesh in replica_meshes(self.mesh))

    def part(self, array: jax.Array) -> jax.Array:
        """An array of the mesh of all replicas as this one sees it: the same memory."""
        assert isinstance(array.sharding, NamedSharding), "placed arrays lie on a mesh"
        return seen_as(array, NamedSharding(self.mesh, array.sharding.spec))

    def spec(self, axes: Axes, shape: tuple[int, ...]) -> PartitionSpec:
        """How an array with these logical axes is split."""
        return partition_spec(axes, shape, self.sizes)

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

    def __call__(self, path: str, axes: Axes, values: Readable) -> jax.Array:
        """Place one parameter, without a copy if it lies there already; `path` is for errors."""
        if self.observe is not None:
            self.observe(path, values)
        try:
            return put(values, self.sharding(axes, values.shape))
        except ValueError as error:
            raise ValueError(f"{path} {values.shape} does not fit its mesh: {error}") from error

    def held(self, array: jax.Array, axes: Axes) -> jax.Array:
        """The array inside a compiled program, split in this way and no other."""
        if not self.is_split:
            return array
        spec = self.spec(axes, array.shape)
        # Inside a stage the mesh is the surrounding function's.
        where = spec if self.inside_stage else NamedSharding(self.mesh, spec)
        return jax.lax.with_sharding_constraint(array, where)

    def on_each_device(
        self, function: Callable[..., Any], inputs: Any, outputs: Any
    ) -> Callable[..., Any]:
        """The function, called on every device with its own parts of the arrays.

        `inputs` and `outputs` are partition specs. The parts of the results must be those that the
        function would give on whole arrays.
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
        """The function, called on every stage with its own parts of the arrays.

        What goes on between the devices of a stage is left to XLA, as it is outside.
        """
        # An axis without a second part may as well be the function's: then nothing is left to XLA
        # where stages are one device each.
        names = {name for name, size in self.mesh.shape.items() if name == STAGES or size == 1}
        return jax.shard_map(
            function, mesh=self.mesh, in_specs=inputs, out_specs=outputs, axis_names=names,
            check_vma=False,
        )  # fmt: skip


class Readable(Protocol):
    """An array, or something of which parts can be read."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...

    def __getitem__(self, part: Any, /) -> Any: ...


def put(values: Readable, sharding: NamedSharding) -> jax.Array:
    """The values where they belong; a process touches no other parts than its devices hold."""
    spans_processes = isinstance(values, jax.Array) and not values.is_fully_addressable
    if isinstance(values, jax.Array) and lies_as(values, sharding):
        return seen_as(values, sharding)
    if sharding.is_fully_addressable or spans_processes:
        given = values if isinstance(values, jax.Array) else np.asarray(values)
        return jax.device_put(given, sharding)
    return jax.make_array_from_callback(
        values.shape, sharding, lambda part: values[part], dtype=values.dtype
    )


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
