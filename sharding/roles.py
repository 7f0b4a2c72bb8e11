"""Translates a user's mesh into one with the engine's axes.

In: a mesh of any axes and axis types. Out: one with "dp" for replicas, "pp" for stages and "tp" for
tensor parallelism, as far as they are larger than 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np
from jax.sharding import AxisType, Mesh

from sharding.axes import DATA, STAGES, TENSOR

# Data, tensor and pipeline parallelism; "first": the engine uses only the devices at index 0 of the
# axis, on which arrays sharded over it are made whole.
Role = Literal["replica", "tensor", "stage", "first"]
ROLES: tuple[Role, ...] = get_args(Role)
AXIS_OF: Mapping[Role, str] = {"replica": DATA, "stage": STAGES, "tensor": TENSOR}
# Usual names of trainers' data-parallel axes.
OF_BATCHES = (DATA, "data", "fsdp", "batch", "replica")


def by_role(mesh: Mesh | None, given: Mapping[str, Role] | None) -> Mesh | None:
    """Rename and merge a mesh's axes by their roles. `given` overrides default roles by axis name.

    Raises ValueError if `mesh` is no Mesh, or a name or role is unknown.
    """
    if mesh is None and not given:
        return None
    if not isinstance(mesh, Mesh):
        raise ValueError(f"mesh is a {type(mesh).__name__}; expected a jax.sharding.Mesh.")
    check_roles(mesh, given or {})
    roles = {**usual_roles(mesh), **(given or {})}
    kept = [name for name in mesh.axis_names if roles[name] != "first"]
    firsts = tuple(slice(None) if name in kept else 0 for name in mesh.axis_names)
    order = [name for role in AXIS_OF for name in kept if roles[name] == role]
    grid = np.asarray(mesh.devices[firsts], object)
    grid = np.transpose(grid, [kept.index(name) for name in order])
    sizes = {
        axis: int(np.prod([mesh.shape[name] for name in order if roles[name] == role]))
        for role, axis in AXIS_OF.items()
    }
    found = {axis: size for axis, size in sizes.items() if size > 1 or axis == TENSOR}
    return Mesh(
        grid.reshape(tuple(found.values())), tuple(found), axis_types=(AxisType.Auto,) * len(found)
    )


def usual_roles(mesh: Mesh) -> dict[str, Role]:
    """Default roles: "stage" for the stage axis, "replica" for data axes, else "tensor". With a
    single axis larger than 1, only the axis "dp" counts as a data axis."""
    several = sum(size > 1 for name, size in mesh.shape.items() if name != STAGES) > 1
    batches = OF_BATCHES if several else (DATA,)
    named: dict[str, Role] = dict.fromkeys(batches, "replica")
    named[STAGES] = "stage"
    return {name: named.get(name, "tensor") for name in mesh.axis_names}


def check_roles(mesh: Mesh, given: Mapping[str, str]) -> None:
    """Raise ValueError for an unknown axis or role."""
    for name, role in given.items():
        if name not in mesh.axis_names:
            raise ValueError(
                f"mesh_axes names {name!r}; this mesh has the axes {dict(mesh.shape)}."
            )
        if role not in ROLES:
            raise ValueError(
                f"mesh_axes[{name!r}] is {role!r}; expected one of {', '.join(map(repr, ROLES))}."
            )
