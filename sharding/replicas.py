"""Data parallelism: the joint mesh and the mesh of each replica.

In: numbers of replicas and devices, or a mesh with the engine's axes. Out: devices and meshes. Must
not know arrays.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from sharding.axes import DATA
from sharding.mesh import chosen_devices, first_devices, more_cpu_devices


def replica_devices(
    replicas: int | None, tensor: int | None, stages: int | None, mesh: Mesh | None
) -> list[np.ndarray]:
    """Devices of each replica, [stages, devices per stage]."""
    if mesh is None:
        return _of_all_devices(replicas or 1, tensor, stages or 1)
    found = mesh.shape.get(DATA, 1)
    if replicas not in (None, found):
        raise ValueError(
            f"data_parallel_size={replicas} and a mesh whose axis {DATA!r} has the size {found}; "
            f"give one, or a mesh with {DATA}={replicas}."
        )
    return [chosen_devices(tensor, stages, part) for part in replica_meshes(mesh)]


def _of_all_devices(replicas: int, tensor: int | None, stages: int) -> list[np.ndarray]:
    if replicas == 1:
        return [chosen_devices(tensor, stages, None)]
    tensor = tensor or max(chosen_devices(None, stages, None).shape[1] // replicas, 1)
    there, wanted = jax.device_count(), f"tensor_parallel_size={tensor}"
    if stages > 1:
        wanted += f" and pipeline_parallel_size={stages}"
    if replicas * stages * tensor > there:
        raise ValueError(
            f"data_parallel_size={replicas} with {wanted} takes {replicas * stages * tensor} "
            f"devices; JAX sees {there} {jax.default_backend().upper()} devices. Lower one of "
            f"them.{more_cpu_devices(replicas * stages * tensor)}"
        )
    return list(first_devices(replicas * tensor, stages).reshape(replicas, stages, tensor))


def mesh_of_replicas(meshes: Sequence[Mesh]) -> Mesh:
    """Join replicas' meshes, of equal shape, into one with the axis "dp"."""
    if len(meshes) == 1:
        return meshes[0]
    grid = np.stack([mesh.devices for mesh in meshes])
    names = (DATA, *meshes[0].axis_names)
    return Mesh(grid, names, axis_types=(AxisType.Auto,) * len(names))


def replica_meshes(mesh: Mesh) -> tuple[Mesh, ...]:
    """Split a mesh into one per replica, without the axis "dp"."""
    if DATA not in mesh.axis_names:
        return (mesh,)
    at = mesh.axis_names.index(DATA)
    names = tuple(name for name in mesh.axis_names if name != DATA)
    kinds = (AxisType.Auto,) * len(names)
    grids = np.moveaxis(mesh.devices, at, 0)
    return tuple(Mesh(grid, names, axis_types=kinds) for grid in grids)
