"""The mesh of an engine, from a number of devices or from the user's mesh."""

from __future__ import annotations

import math

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from sharding.axes import CONTEXT, PREFILL, REPLICAS, STAGES, TENSOR


def engine_mesh(
    devices: np.ndarray, kv_heads: tuple[int, ...], context: int = 1, prefill: int = 1
) -> Mesh:
    """Build an engine's mesh from devices [stages, devices per stage].

    `prefill` groups of a stage's devices divide a step's tokens; `context` devices of a group
    divide each request's cached tokens. KV heads are sharded over as many of the remaining devices
    as divide every number in `kv_heads` evenly; the rest hold replicas.
    """
    stages, size = devices.shape
    sizes = mesh_sizes(size, stages, kv_heads, context, prefill)
    grid = devices.reshape(tuple(sizes.values()))
    return Mesh(grid, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def mesh_sizes(
    devices: int, stages: int, kv_heads: tuple[int, ...], context: int = 1, prefill: int = 1
) -> dict[str, int]:
    """Mesh axes and their sizes for `devices` devices per stage."""
    if prefill < 1 or devices % prefill:
        raise ValueError(
            f"prefill_context_parallel_size={prefill}: expected a divisor of the {devices} devices "
            "of a stage, in as many groups of which it divides the tokens of a step."
        )
    devices //= prefill
    if context < 1 or devices % context:
        raise ValueError(
            f"decode_context_parallel_size={context}: expected a divisor of the {devices} devices "
            "that share each layer (tensor_parallel_size), among which it divides the cached "
            "tokens of each request."
        )
    others = devices // context
    tensor = math.gcd(others, *kv_heads)
    groups = {} if prefill == 1 else {PREFILL: prefill}
    sizes = {STAGES: stages, **groups, TENSOR: tensor, REPLICAS: others // tensor}
    return sizes if context == 1 else {**sizes, CONTEXT: context}


def chosen_devices(tensor: int | None, stages: int | None, mesh: Mesh | None) -> np.ndarray:
    """Choose an engine's devices, [stages, devices per stage], from a mesh or JAX's first ones.

    A mesh's axes other than "pp" are flattened. Default: one device per stage; in a multi-process
    program, all devices of all processes.
    """
    if mesh is not None:
        return _devices_of(mesh, tensor, stages)
    stages = stages or 1
    usual = jax.device_count() // stages if jax.process_count() > 1 else 1
    return first_devices(usual if tensor is None else tensor, stages)


def _devices_of(mesh: Mesh, tensor: int | None, stages: int | None) -> np.ndarray:
    """Devices of a mesh with the stage axis first."""
    names = list(mesh.axis_names)
    devices = mesh.devices
    if STAGES in names:
        devices = np.moveaxis(devices, names.index(STAGES), 0)
    grid = devices.reshape(mesh.shape.get(STAGES, 1), -1)
    for name, given, size in (
        ("tensor_parallel_size", tensor, grid.shape[1]),
        ("pipeline_parallel_size", stages, grid.shape[0]),
    ):
        if given not in (None, size):
            raise ValueError(
                f"{name}={given} and a mesh of {mesh.devices.size} devices; give one. (The mesh "
                f"has the axes {dict(mesh.shape)}, which means {name}={size}.)"
            )
    return grid


def more_cpu_devices(wanted: int) -> str:
    """Hint for error messages on making more virtual CPU devices; empty if there are enough, or on
    other platforms."""
    if jax.default_backend() != "cpu" or wanted <= jax.device_count():
        return ""
    return (
        f" To make {wanted} devices of the CPU, for tests, start Python with"
        f" XLA_FLAGS=--xla_force_host_platform_device_count={wanted}, or call"
        f" jax.config.update('jax_num_cpu_devices', {wanted}) first."
    )


def first_devices(tensor: int, stages: int) -> np.ndarray:
    """The first devices in JAX's order, [stages, devices per stage]."""
    devices = jax.devices()
    wanted = f"tensor_parallel_size={tensor}"
    if stages > 1:
        wanted += f" x pipeline_parallel_size={stages}"
    if not 1 <= tensor * stages <= len(devices):
        raise ValueError(
            f"{wanted}: expected 1{f' to {len(devices)}' * (len(devices) > 1)}, the number of "
            f"{devices[0].platform.upper()} devices that JAX sees."
            f"{more_cpu_devices(tensor * stages)}"
        )
    return np.array(devices[: tensor * stages]).reshape(stages, tensor)


def one_device_mesh(device: jax.Device | None = None) -> Mesh:
    return engine_mesh(np.array([[jax.devices()[0] if device is None else device]]), (1,))


def steps_may_queue(mesh: Mesh) -> bool:
    """Whether a step may be dispatched while another runs.

    Not on several virtual devices of one CPU: they share a thread pool, and two steps with
    collectives can each hold threads that the other waits for, a deadlock.
    """
    return mesh.size == 1 or jax.default_backend() != "cpu"
