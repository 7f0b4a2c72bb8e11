"""The table from logical axes, which models declare, to mesh axes."""

from __future__ import annotations

import math
from collections.abc import Mapping

from jax.sharding import PartitionSpec

# The mesh of an engine. STAGES shards the layers. Devices along REPLICAS and CONTEXT work on the
# same KV heads, because a model has fewer of those than there are devices: along REPLICAS they
# cache the same tokens of a request, along CONTEXT different ones. Everything else of a layer is
# sharded over all three. Devices along PREFILL have the same part of the model and of the cache,
# and compute different tokens of a step.
STAGES, TENSOR, REPLICAS, CONTEXT, PREFILL = "pp", "tp", "tp_replicas", "dcp", "pcp"
# Numbers copies of the model.
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
    # Images that devices encode apart, each with a whole tower.
    "images": (TENSOR, REPLICAS, CONTEXT),
    # The tokens of a block of the KV cache; queries and heads that read one device's tokens.
    "block_tokens": (CONTEXT,),
    "queries_of_block": (REPLICAS,),
    "heads_of_block": (TENSOR, REPLICAS),
    # The tokens of a step, in the order of devices.
    "tokens": (PREFILL,),
    "embed": (),
    # Parameters of experts name "mlp" as well: a placement shards by one of the two. Over copies of
    # the model only where those step together.
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
