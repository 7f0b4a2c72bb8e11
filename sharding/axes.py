"""One table: which mesh axis a logical axis is split over. Models speak logical names only."""

from __future__ import annotations

from jax.sharding import PartitionSpec

# Logical axis of a parameter -> axis of the device mesh (None: every device holds all of it).
MESH_AXES: dict[str, str | None] = {
    "vocab": "tp",
    "kv_heads": "tp",
    "mlp": "tp",
    "embed": None,
    # Experts are split inside, by "mlp"; parameters name both axes.
    "experts": None,
    "head_dim": None,
}


def partition_spec(axes: tuple[str | None, ...]) -> PartitionSpec:
    """The sharding of an array with these logical axes."""
    for axis in axes:
        if axis is not None and axis not in MESH_AXES:
            raise ValueError(f"logical axis {axis!r} is not in the table: {', '.join(MESH_AXES)}")
    mesh_axes = [None if axis is None else MESH_AXES[axis] for axis in axes]
    used = [axis for axis in mesh_axes if axis is not None]
    if len(used) != len(set(used)):
        raise ValueError(f"axes {axes} would split two dimensions over one mesh axis: {mesh_axes}")
    return PartitionSpec(*mesh_axes)
