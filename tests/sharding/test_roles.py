"""What the axes of trainers' meshes stand for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from sharding.roles import by_role

NUMBERED = np.array([Mock(id=number) for number in range(8)], object)


def mesh_of(kind: AxisType = AxisType.Auto, **sizes: int) -> Mesh:
    devices = NUMBERED[: int(np.prod(list(sizes.values())))].reshape(tuple(sizes.values()))
    return Mesh(devices, tuple(sizes), axis_types=(kind,) * len(sizes))


def numbers(mesh: Mesh | None) -> tuple[dict[str, int], list[Any]]:
    assert mesh is not None
    ids = np.vectorize(lambda device: device.id)(mesh.devices)
    return dict(mesh.shape), ids.tolist()


@pytest.mark.parametrize("kind", list(AxisType))
@pytest.mark.parametrize(
    ("sizes", "roles", "found"),
    [
        ({"data": 8}, None, ({"tp": 8}, [*range(8)])),
        ({"data": 2, "model": 2}, None, ({"dp": 2, "tp": 2}, [[0, 1], [2, 3]])),
        ({"model": 2, "fsdp": 2}, None, ({"dp": 2, "tp": 2}, [[0, 2], [1, 3]])),
        ({"data": 1, "model": 2}, None, ({"tp": 2}, [0, 1])),
        ({"a": 2, "b": 2}, None, ({"tp": 4}, [0, 1, 2, 3])),
        ({"data": 2, "model": 2}, {"data": "tensor"}, ({"tp": 4}, [0, 1, 2, 3])),
        ({"data": 2, "model": 2}, {"data": "first"}, ({"tp": 2}, [0, 1])),
        ({"data": 2, "model": 2}, {"data": "first", "model": "first"}, ({"tp": 1}, [0])),
        ({"data": 2}, {"data": "replica"}, ({"dp": 2, "tp": 1}, [[0], [1]])),
        (
            {"model": 2, "layers": 2, "data": 2},
            {"layers": "stage"},
            ({"dp": 2, "pp": 2, "tp": 2}, [[[0, 4], [2, 6]], [[1, 5], [3, 7]]]),
        ),
    ],
)
def test_axes_by_role(
    kind: AxisType, sizes: dict[str, int], roles: Mapping[str, Any] | None, found: Any
) -> None:
    assert numbers(by_role(mesh_of(kind, **sizes), roles)) == found


def test_no_mesh() -> None:
    assert by_role(None, None) is None
    with pytest.raises(ValueError, match="mesh is a NoneType"):
        by_role(None, {"data": "replica"})
