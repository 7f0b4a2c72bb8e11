"""How logical axes are split over a mesh, without devices."""

from __future__ import annotations

import pytest
from jax.sharding import PartitionSpec

from sharding.axes import CONTEXT, MESH_AXES, REPLICAS, STAGES, TENSOR, mesh_axes, partition_spec

SIZES = {STAGES: 1, TENSOR: 2, REPLICAS: 2}


@pytest.mark.parametrize(
    ("axes", "shape", "spec"),
    [
        (("embed", "mlp"), (8, 16), (None, (TENSOR, REPLICAS))),
        (("embed", "kv_heads", None), (8, 4, 3), (None, (TENSOR,), None)),
        (("kv_heads", "queries_of_kv_head"), (4, 2), ((TENSOR,), (REPLICAS,))),
        (("embed", "mlp"), (8, 6), (None, (TENSOR,))),  # 6 / 4 is no whole number, 6 / 2 is
        (("embed", "mlp"), (8, 7), (None, None)),
        ((None, "vocab"), (1, 8), (None, (TENSOR, REPLICAS))),
    ],
)
def test_a_dimension_is_split_where_it_divides_evenly(
    axes: tuple[str | None, ...], shape: tuple[int, ...], spec: tuple[object, ...]
) -> None:
    assert partition_spec(axes, shape, SIZES) == PartitionSpec(*spec)


def test_one_mesh_axis_splits_one_dimension() -> None:
    with pytest.raises(ValueError, match="two dimensions over one mesh axis"):
        partition_spec(("mlp", "mlp"), (8, 8), SIZES)


def test_an_unknown_axis_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'wings' is not in the table: .*kv_heads"):
        mesh_axes("wings", 8, SIZES)


def test_the_vocabulary_is_split_over_everything_but_replicas_of_the_model() -> None:
    assert MESH_AXES["vocab"] == (STAGES, TENSOR, REPLICAS, CONTEXT)
