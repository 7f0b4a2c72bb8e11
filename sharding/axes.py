"""The table from logical axes, which models declare, to mesh axes."""

from __future__ import annotations

import math
from collections.abc import Mapping

from jax.sharding import PartitionSpec

# Axes of a replica's mesh. STAGES shards the layers. Devices along REPLICAS and CONTEXT have the
# same KV heads: along REPLICAS they cache the same tokens of a request, along CONTEXT different
# ones. Everything else of a layer is sharded over TENSOR and these two. Devices along PREFILL have
# the same shards of the model and of the cache, and compute different tokens of a step.
STAGES, TENSOR, REPLICAS, CONTEXT, PREFILL = "pp", "tp", "tp_replicas", "dcp", "pcp"
# Data-parallel replicas.
DATA = "dp"

# Logical axis -> the mesh axes it is sharded over (none: replicated).
MESH_AXES: dict[str, tuple[str, ...]] = {
    # Logits are computed by the devices of all stages.
    "vocab": (STAGES, TENSOR, REPLICAS, CONTEXT),
    # The first axis of arrays that hold the layers of all stages.
    "stage": (STAGES,),
    "mlp": (TENSOR, REPLICAS, CONTEXT),
    "kv_heads": (TENSOR,),
    "queries_of_kv_head": (REPLICAS, CONTEXT),
    # Heads of latent attention, which share what is cached.
    "heads": (TENSOR, REPLICAS, CONTEXT),
    # Images encoded data-parallel, each device with the whole encoder.
    "images": (TENSOR, REPLICAS, CONTEXT),
    # The tokens of a block of the KV cache; queries and heads that read one device's tokens.
    "block_tokens": (CONTEXT,),
    "queries_of_block": (REPLICAS,),
    "heads_of_block": (TENSOR, REPLICAS),
    # The tokens of a step, in the order of devices.
    "tokens": (PREFILL,),
    "embed": (),
    # Expert weights name "mlp" as well: a placement shards by one of the two. Sharded over replicas
    # only if these run joint steps.
    "experts": (DATA, TENSOR, REPLICAS, CONTEXT),
    "head_dim": (),
}

Axes = tuple[str | None, ...]


def partition_spec(axes: Axes, shape: tuple[int, ...], sizes: Mapping[str, int]) -> PartitionSpec:
    """Partition spec of an array with these logical axes on a mesh of these sizes.

    A dimension that a mesh axis does not divide evenly is not sharded over that axis. Raises
    ValueError if two dimensions would use the same mesh axis.
    """
    spec = [mesh_axes(axis, size, sizes) for axis, size in zip(axes, shape, strict=True)]
    used = [name for names in spec for name in names]
    if len(used) != len(set(used)):
        raise ValueError(f"axes {axes} would split two dimensions over one mesh axis: {spec}")
    return PartitionSpec(*(names or None for names in spec))


def mesh_axes(axis: str | None, size: int, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Mesh axes that a dimension of this size is sharded over."""
    if axis is None:
        return ()
    if axis not in MESH_AXES:
        raise ValueError(f"logical axis {axis!r} is not in the table: {', '.join(MESH_AXES)}")
    names = tuple(name for name in MESH_AXES[axis] if sizes.get(name, 1) > 1)
    while names and size % math.prod(sizes[name] for name in names):
        names = names[:-1]
    return names
