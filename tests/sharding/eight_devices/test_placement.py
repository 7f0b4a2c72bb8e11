"""Stored parameters are read shard by shard, each of them once."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from sharding.placement import put


class Stored:
    """An array in a file, of which parts can be read."""

    def __init__(self) -> None:
        self.values = np.arange(64 * 16, dtype=np.float32).reshape(64, 16)
        self.shape, self.dtype = self.values.shape, self.values.dtype
        self.reads: list[int] = []

    def __getitem__(self, part: Any) -> np.ndarray:
        found = self.values[part].copy()
        self.reads.append(found.size)
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[()], dtype)


@pytest.mark.parametrize(
    ("spec", "reads"),
    [
        (PartitionSpec("a", "b"), [128] * 8),
        (PartitionSpec(None, "b"), [512] * 2),  # four devices have the same shard
        (PartitionSpec(), [1024]),
    ],
)
def test_each_shard_is_read_once(spec: PartitionSpec, reads: list[int]) -> None:
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    stored = Stored()
    placed = put(stored, NamedSharding(mesh, spec))
    assert stored.reads == reads
    np.testing.assert_array_equal(placed, stored.values)
    assert placed.sharding.spec == spec
