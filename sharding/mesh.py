"""The engine's mesh: made of a number of devices, or of a mesh that the user has."""

from __future__ import annotations

import math

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from sharding.axes import REPLICAS, TENSOR


def engine_mesh(devices: np.ndarray, kv_heads: tuple[int, ...]) -> Mesh:
    """A mesh of these devices, in their order, for layers with these numbers of kv heads.

    As many devices as divide all of them hold different heads; the others hold copies.
    """
    tensor = math.gcd(devices.size, *kv_heads)
    grid = devices.reshape(tensor, devices.size // tensor)
    return Mesh(grid, (TENSOR, REPLICAS), axis_types=(AxisType.Auto, AxisType.Auto))


def tensor_devices(count: int | None, mesh: Mesh | None) -> np.ndarray:
    """The devices to split a model over: those of a mesh, or the first `count`.

    If nothing is said: one device, or, in a program of several processes, all that they have.
    """
    if mesh is None:
        usual = jax.device_count() if jax.process_count() > 1 else 1
        return first_devices(usual if count is None else count)
    if not isinstance(mesh, Mesh):
        raise ValueError(f"mesh is a {type(mesh).__name__}; expected a jax.sharding.Mesh.")
    split = [name for name, size in mesh.shape.items() if size > 1]
    if len(split) > 1:
        raise ValueError(
            f"mesh has the axes {dict(mesh.shape)}; expected one axis larger than 1, which the "
            "model is split over. Use a mesh of a part of the devices."
        )
    if count not in (None, mesh.devices.size):
        raise ValueError(
            f"tensor_parallel_size={count} and a mesh of {mesh.devices.size} devices; give one."
        )
    return mesh.devices.reshape(-1)


def first_devices(count: int) -> np.ndarray:
    """That many devices, as JAX numbers them."""
    devices = jax.devices()
    if not 1 <= count <= len(devices):
        raise ValueError(
            f"tensor_parallel_size={count}: expected 1 to {len(devices)}, the number of "
            f"{devices[0].platform.upper()} devices that JAX sees."
        )
    return np.array(devices[:count])


def one_device_mesh(device: jax.Device | None = None) -> Mesh:
    """A mesh of one device, so that one device is not a special case anywhere else."""
    return engine_mesh(np.array([jax.devices()[0] if device is None else device]), (1,))
