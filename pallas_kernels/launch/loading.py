"""Runs kernels once on devices, without collectives, so that their modules are loaded there.

A kernel's module is loaded at its first launch on a device, which may wait until the device is
idle. Where a collective runs there that waits for another device, which is loading a module too,
both deadlock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AxisType, Mesh, PartitionSpec

from pallas_kernels.launch.call import Shape, kernel_call


class KernelCall(NamedTuple):
    """A kernel with the shapes of its arrays and its launch, which determine its module."""

    arrays: tuple[Shape, ...]
    parameters: tuple[tuple[str, Any], ...]  # of `kernel_call`


def kernel_calls(jaxpr: Any) -> frozenset[KernelCall]:
    """The distinct kernel calls of a jaxpr."""
    return frozenset(
        KernelCall(
            tuple(Shape(one.aval.shape, np.dtype(one.aval.dtype)) for one in equation.invars),
            tuple(sorted(equation.params.items())),
        )
        for equation in kernel_equations(jaxpr)
    )


def kernel_equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of kernel calls, at any depth."""
    for equation in jaxpr.eqns:
        if equation.primitive is kernel_call:
            yield equation
        for value in equation.params.values():
            for one in value if isinstance(value, (tuple, list)) else [value]:
                inner = getattr(one, "jaxpr", one)
                if hasattr(inner, "eqns"):
                    yield from kernel_equations(inner)


def load_kernels(calls: Iterable[KernelCall], devices: Sequence[jax.Device]) -> None:
    """Run each call on zeros, one after the other, on every device, and wait. Needs memory for the
    arrays of the largest one."""
    jax.block_until_ready(loading(calls, devices)(np.int32(0)))


def loading(calls: Iterable[KernelCall], devices: Sequence[jax.Device]) -> Any:
    """The jitted program of `load_kernels`; it takes a zero."""
    mesh = Mesh(np.asarray(devices), ("devices",), axis_types=(AxisType.Auto,))
    ordered = sorted(calls, key=str)  # the same program at the next start
    run = jax.shard_map(
        lambda zero: run_each(ordered, zero), mesh=mesh, in_specs=PartitionSpec(),
        out_specs=PartitionSpec("devices"), check_vma=False,
    )  # fmt: skip
    return jax.jit(run)


def run_each(calls: Iterable[KernelCall], zero: Array) -> Array:
    """Run calls in order, on arrays broadcast from `zero`. XLA must not know its value: merged
    constants of several calls would be alive together, and two caches of zeros do not fit."""
    for call in calls:
        arrays = [jnp.broadcast_to(zero.astype(one.dtype), one.shape) for one in call.arrays]
        results = kernel_call.bind(*arrays, **dict(call.parameters))
        zero &= results[0].reshape(-1)[0].astype(jnp.int32)
    return zero[None]
