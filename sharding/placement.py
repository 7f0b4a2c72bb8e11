"""Places arrays on devices by logical axes, and maps functions over shards."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sharding.axes import DATA, MESH_AXES, PREFILL, STAGES, Axes, mesh_axes, partition_spec
from sharding.replicas import replica_meshes

# JAX's memory kind of pinned host memory, the fastest for device transfers.
HOST = "pinned_host"


@dataclass(frozen=True)
class Placement:
    """The sharding of arrays on a mesh."""

    mesh: Mesh
    # Called with every parameter before it is put on devices.
    observe: Callable[[str, Any], None] | None = field(default=None, compare=False)
    # Expert parallelism: each device has whole experts, instead of a shard of each.
    whole_experts: bool = False
    # Collectives of expert parallelism (`all2all_backend`).
    expert_exchange: str = "allgather_reducescatter"
    # Redundant expert slots (EPLB); None: no slots, so experts do not move.
    redundant_experts: int | None = None
    # Whether replicas run joint steps, with whole experts spread over all of them.
    joint: bool = False
    # Whether this is the view inside a function mapped over stages, or over the replicas of joint
    # steps, where arrays are already shards.
    inside_stage: bool = False
    inside_replica: bool = False
    # Whether arrays are replicated and each device computes by itself.
    is_apart: bool = False
    # Whether every device runs all tokens of a step, even with a "pcp" axis.
    runs_all_tokens: bool = False
    # HOST: arrays are in host memory, with the same shardings.
    memory: str | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Size of each mesh axis as seen from here: 1 for axes already mapped over."""
        sizes = dict(self.mesh.shape)
        if self.is_apart:
            return dict.fromkeys(sizes, 1)
        if self.inside_replica:
            sizes[DATA] = 1
        if self.runs_all_tokens:
            sizes[PREFILL] = 1
        return {**sizes, STAGES: 1} if self.inside_stage else sizes

    @property
    def axis_sizes(self) -> dict[str, int]:
        """`sizes` for logical axes, which span replicas only in joint steps (`joint`)."""
        return self.sizes if self.joint else {**self.sizes, DATA: 1}

    @property
    def is_cpu(self) -> bool:
        """Whether the devices are CPUs, real or virtual."""
        return self.mesh.devices.flat[0].platform == "cpu"

    @property
    def is_split(self) -> bool:
        return math.prod(self.sizes.values()) > 1

    @property
    def num_stages(self) -> int:
        return self.mesh.shape[STAGES]

    def in_replica(self) -> Placement:
        """This placement as seen inside a function mapped by `on_each_replica`."""
        return replace(self, inside_replica=True)

    def in_stage(self) -> Placement:
        """This placement as seen inside a function mapped by `on_each_stage`."""
        return replace(self, inside_stage=True)

    @property
    def apart(self) -> Placement:
        """A placement under which all arrays are replicated."""
        return replace(self, is_apart=True)

    @property
    def with_all_tokens(self) -> Placement:
        """A placement under which a step's tokens are not sharded over "pcp"."""
        return replace(self, runs_all_tokens=True)

    def stage(self, index: int) -> Placement:
        axis = self.mesh.axis_names.index(STAGES)
        devices = np.take(self.mesh.devices, [index], axis)
        axes = {"axis_names": self.mesh.axis_names, "axis_types": self.mesh.axis_types}
        return replace(self, mesh=Mesh(devices, **axes))

    @property
    def processes(self) -> list[int]:
        """Indices of the processes that own these devices."""
        return sorted({device.process_index for device in self.mesh.devices.flat})

    @property
    def replicas(self) -> tuple[Placement, ...]:
        """One placement per data-parallel replica; just this one without data parallelism."""
        return tuple(replace(self, mesh=mesh, joint=False) for mesh in replica_meshes(self.mesh))

    @property
    def of_one_device(self) -> Placement:
        """A placement on the first device alone."""
        axes = {"axis_names": self.mesh.axis_names, "axis_types": self.mesh.axis_types}
        first = self.mesh.devices.flat[:1].reshape([1] * self.mesh.devices.ndim)
        return Placement(Mesh(first, **axes))

    def part(self, array: jax.Array) -> jax.Array:
        """A replica's view of an array on the mesh of all replicas, without a copy."""
        where = array.sharding
        assert isinstance(where, NamedSharding), "placed arrays have a named sharding"
        own = NamedSharding(self.mesh, where.spec, memory_kind=where.memory_kind)
        return seen_as(array, own)

    def spec(self, axes: Axes, shape: tuple[int, ...]) -> PartitionSpec:
        left_out = "experts"
        if self.whole_experts and "experts" in axes:
            left_out = "mlp"
        axes = tuple(None if axis == left_out else axis for axis in axes)
        return partition_spec(axes, shape, self.axis_sizes)

    def sharding(self, axes: Axes, shape: tuple[int, ...]) -> NamedSharding:
        return NamedSharding(self.mesh, self.spec(axes, shape), memory_kind=self.memory)

    def ways(self, axis: str) -> int:
        """Number of shards of a logical axis whose dimension divides evenly."""
        left_out = set() if self.joint else {DATA}
        left_out |= {PREFILL} if self.runs_all_tokens else set()
        return math.prod(
            self.mesh.shape.get(name, 1) for name in MESH_AXES[axis] if name not in left_out
        )

    def ways_of(self, axis: str | None, size: int) -> int:
        """Number of shards of a dimension of this size along a logical axis."""
        sizes = self.axis_sizes
        return math.prod(sizes[name] for name in mesh_axes(axis, size, sizes))

    @property
    def everywhere(self) -> NamedSharding:
        """The replicated sharding."""
        return NamedSharding(self.mesh, PartitionSpec())

    def __call__(self, path: str, axes: Axes, values: Readable) -> jax.Array:
        """Put a parameter on its devices; no copy if it is already there. `path` is for errors."""
        if self.observe is not None:
            self.observe(path, values)
        try:
            return put(values, self.sharding(axes, values.shape))
        except ValueError as error:
            raise ValueError(f"{path} {values.shape} does not fit its mesh: {error}") from error

    def held(self, array: jax.Array, axes: Axes) -> jax.Array:
        """Constrain an array's sharding inside a compiled program."""
        if not self.is_split:
            return array
        spec = self.spec(axes, array.shape)
        # Inside a stage the mesh is the surrounding function's.
        where = spec if self.is_inside else NamedSharding(self.mesh, spec)
        return jax.lax.with_sharding_constraint(array, where)

    def on_each_device(
        self, function: Callable[..., Any], inputs: Any, outputs: Any
    ) -> Callable[..., Any]:
        """`shard_map` over devices; each call gets one device's shards.

        `inputs` and `outputs` are partition specs. The function must return the shards of its
        result for whole arrays.
        """
        if not self.is_split:
            return function
        names = {name for name, size in self.sizes.items() if size > 1}
        inside: dict[str, Any] = {"axis_names": names} if self.is_inside else {"mesh": self.mesh}
        return jax.shard_map(
            function, in_specs=inputs, out_specs=outputs, check_vma=False, **inside
        )

    @property
    def is_inside(self) -> bool:
        """Whether an enclosing function has mapped some mesh axes already."""
        return self.inside_stage or self.inside_replica

    def on_each_replica(
        self, function: Callable[..., Any], inputs: Any, outputs: Any
    ) -> Callable[..., Any]:
        """Map a function over replicas; each call gets one replica's shards, still sharded by XLA
        within."""
        return self._along(DATA, function, inputs, outputs)

    def on_each_stage(
        self, function: Callable[..., Any], inputs: Any, outputs: Any
    ) -> Callable[..., Any]:
        """Map a function over pipeline stages; each call gets one stage's shards, still sharded by
        XLA within."""
        return self._along(STAGES, function, inputs, outputs)

    def _along(
        self, axis: str, function: Callable[..., Any], inputs: Any, outputs: Any
    ) -> Callable[..., Any]:
        # Axes of size one are manual too: with one device per stage nothing is left to XLA.
        names = {name for name, size in self.mesh.shape.items() if name == axis or size == 1}
        return jax.shard_map(
            function, mesh=self.mesh, in_specs=inputs, out_specs=outputs, axis_names=names,
            check_vma=False,
        )  # fmt: skip


class Readable(Protocol):
    """An array, or a stored parameter that can be read in slices."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...

    def __getitem__(self, part: Any, /) -> Any: ...


def put(values: Readable, sharding: NamedSharding) -> jax.Array:
    """Put values on devices. Reads only addressable shards of stored values, each once."""
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
        if key not in shards:  # replicated shards are read once
            shards[key] = values[part]
        return shards[key]

    return jax.make_array_from_callback(values.shape, sharding, shard, dtype=values.dtype)


def has_shards_of(array: jax.Array, sharding: NamedSharding) -> bool:
    """Whether each device already holds its shard, in any order of devices."""
    if not array.is_fully_addressable or array.sharding.device_set != sharding.device_set:
        return False
    if (array.sharding.memory_kind == HOST) != (sharding.memory_kind == HOST):
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
    """Rewrap an array's buffers under another sharding, over all or some of its devices; no
    copy."""
    if array.sharding == sharding:
        return array
    data = {shard.device: shard.data for shard in array.addressable_shards}
    own = [data[device] for device in sharding.mesh.devices.flat]
    return jax.make_array_from_single_device_arrays(array.shape, sharding, own)
