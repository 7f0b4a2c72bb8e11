"""The table from logical axes, which models use, to the mesh axes they are sharded over."""

from __future__ import annotations

import math
from collections.abc import Mapping

from jax.sharding import PartitionSpec

# The mesh of an engine. STAGES shards the layers. Devices along REPLICAS hold the same KV heads,
# because a model has fewer of those than there are devices; everything else of a layer is sharded
# over TENSOR and REPLICAS.
STAGES, TENSOR, REPLICAS = "pp", "tp", "tp_replicas"
# Numbers whole copies of the model. No logical axis is sharded over it.
DATA = "dp"

# Logical axis -> the mesh axes it is sharded over (none: replicated).
MESH_AXES: dict[str, tuple[str, ...]] = {
    # Logits are computed by the devices of all stages.
    "vocab": (STAGES, TENSOR, REPLICAS),
    # The first axis of arrays that hold the layers of all stages.
    "stage": (STAGES,),
    "mlp": (TENSOR, REPLICAS),
    "kv_heads": (TENSOR,),
    "queries_of_kv_head": (REPLICAS,),
    # Heads of latent attention, which share what is cached.
    "heads": (TENSOR, REPLICAS),
    "embed": (),
    # Experts are sharded inside, by "mlp"; parameters name both axes.
    "experts": (),
    "head_dim": (),
}

Axes = tuple[str | None, ...]


def partition_spec(axes: Axes, shape: tuple[int, ...], sizes: Mapping[str, int]) -> PartitionSpec:
    """The partition spec of an array with these logical axes, on a mesh of these sizes.

    A dimension that a mesh axis does not divide evenly is not sharded over that axis.
    """
    spec = [mesh_axes(axis, size, sizes) for axis, size in zip(axes, shape, strict=True)]
    used = [name for names in spec for name in names]
    if len(used) != len(set(used)):
        raise ValueError(f"axes {axes} would split two dimensions over one mesh axis: {spec}")
    return PartitionSpec(*(names or None for names in spec))


def mesh_axes(axis: str | None, size: int, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The mesh axes that one dimension is sharded over."""
    if axis is None:
        return ()
    if axis not in MESH_AXES:
        raise ValueError(f"logical axis {axis!r} is not in the table: {', '.join(MESH_AXES)}")
    names = tuple(name for name in MESH_AXES[axis] if sizes[name] > 1)
    while names and size % math.prod(sizes[name] for name in names):
        names = names[:-1]
    return names
