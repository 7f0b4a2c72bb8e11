"""The mesh of an engine: its sizes, and what is refused, on the one device there is."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from sharding.axes import CONTEXT, REPLICAS, STAGES, TENSOR
from sharding.mesh import (
    chosen_devices,
    first_devices,
    mesh_sizes,
    more_cpu_devices,
    one_device_mesh,
    steps_may_queue,
)
from sharding.placement import Placement
from sharding.replicas import replica_devices


@pytest.mark.parametrize(
    ("devices", "kv_heads", "tensor", "replicas"),
    [(1, (8,), 1, 1), (4, (8,), 4, 1), (8, (2,), 2, 4), (8, (4, 6), 2, 4), (3, (8,), 1, 3)],
)
def test_devices_beyond_the_kv_heads_hold_copies(
    devices: int, kv_heads: tuple[int, ...], tensor: int, replicas: int
) -> None:
    assert mesh_sizes(devices, 2, kv_heads) == {STAGES: 2, TENSOR: tensor, REPLICAS: replicas}


def test_devices_that_divide_the_context_hold_no_copies() -> None:
    sizes = {STAGES: 1, TENSOR: 2, REPLICAS: 1, CONTEXT: 4}
    assert mesh_sizes(8, 1, (2,), context=4) == sizes
    with pytest.raises(ValueError, match="decode_context_parallel_size=3: expected a divisor"):
        mesh_sizes(8, 1, (2,), context=3)


def test_one_device_is_chosen_where_nothing_is_said() -> None:
    assert chosen_devices(None, None, None).shape == (1, 1)


@pytest.mark.parametrize("tensor", [0, 64])
def test_more_devices_than_there_are(tensor: int) -> None:
    with pytest.raises(ValueError, match=f"tensor_parallel_size={tensor}"):
        chosen_devices(tensor, None, None)


def test_more_cpu_devices_can_be_made() -> None:
    with pytest.raises(ValueError, match=r"xla_force_host_platform_device_count=64.*jax_num_cpu"):
        chosen_devices(64, None, None)
    with pytest.raises(ValueError, match=r"xla_force_host_platform_device_count=128"):
        replica_devices(64, 2, None, None)
    assert more_cpu_devices(jax.device_count()) == ""


def test_a_mesh_and_a_size_that_contradict_each_other() -> None:
    mesh = Mesh(np.array(jax.devices()[:1]), ("x",))
    with pytest.raises(ValueError, match="tensor_parallel_size=2 and a mesh of 1 devices"):
        chosen_devices(2, None, mesh)


def test_an_array_that_is_in_place_is_not_copied() -> None:
    placement = Placement(one_device_mesh())
    array = jnp.arange(6.0).reshape(2, 3)
    placed = placement("weight", ("embed", "mlp"), array)
    assert placed.unsafe_buffer_pointer() == array.unsafe_buffer_pointer()
    assert placement("weight", ("embed", "mlp"), placed) is placed
    assert steps_may_queue(placement.mesh)


def test_more_devices_than_there_are_are_refused() -> None:
    with pytest.raises(ValueError, match=r"size=2: expected 1, the number of CPU devices that JAX"):
        first_devices(2, 1)
