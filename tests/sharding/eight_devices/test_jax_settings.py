"""Engines of several devices in programs that have a mesh, and other settings, of their own."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from tests.api.engines import tiny_engine
from tests.sharding.eight_devices.same_answers import run

SHAPES: dict[str, dict[str, Any]] = {
    "tensor": {"tensor_parallel_size": 2},
    "data": {"data_parallel_size": 2, "tensor_parallel_size": 2},
    "pipeline": {"pipeline_parallel_size": 2},
}


def spread(value: np.ndarray, mesh: Mesh) -> jax.Array:
    """As a training program has it: over all devices, along the first axis if that divides."""
    divides = value.ndim and value.shape[0] % mesh.size == 0
    return jax.device_put(value, NamedSharding(mesh, PartitionSpec("data" if divides else None)))


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_answers_are_those_of_a_program_without(folder: Path, shape: str) -> None:
    with tiny_engine(folder, **SHAPES[shape]) as llm:
        wanted = run(llm)
        given = {name: np.array(value) for name, value in llm.engine.loaded.parameters().items()}
    mesh = jax.make_mesh((8,), ("data",))
    with ExitStack() as stack:
        stack.enter_context(jax.set_mesh(mesh))
        stack.enter_context(jax.enable_x64(True))
        stack.enter_context(jax.transfer_guard("disallow"))
        stack.enter_context(jax.numpy_dtype_promotion("strict"))
        llm = stack.enter_context(tiny_engine(folder, **SHAPES[shape]))
        assert run(llm) == wanted
        llm.update_params({name: spread(value, mesh) for name, value in given.items()})
        assert run(llm) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto, AxisType.Manual])
@pytest.mark.parametrize("role", ["replica", "first", "tensor"])
def test_a_mesh_of_data_and_model(folder: Path, kind: AxisType, role: str) -> None:
    """As a trainer has it, with parameters sharded over both axes."""
    with tiny_engine(folder) as llm:
        wanted = run(llm)
        given = {name: np.array(value) for name, value in llm.params.items()}
    devices = np.array(jax.devices()[:4]).reshape(2, 2)
    trainers = Mesh(devices, ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    mesh = Mesh(devices, ("data", "model"), axis_types=(kind,) * 2)
    with tiny_engine(folder, mesh=mesh, mesh_axes={"data": role}) as llm:
        assert llm.mesh.devices.size == (2 if role == "first" else 4)
        with jax.set_mesh(trainers):
            llm.update_params({name: spread(value, trainers) for name, value in given.items()})
            assert run(llm) == wanted
        assert run(llm) == wanted
