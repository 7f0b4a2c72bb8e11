"""The JAX primitive behind `call_kernel`: abstract evaluation, and one lowering per platform.

In: a Triton kernel, arrays, and how to launch it. Out: a custom call on CUDA that XLA can put into
a CUDA graph; a host callback into Triton's interpreter on the CPU. Must not know any kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.extend as jex
import numpy as np
from jax import Array
from jax.interpreters import mlir

from pallas_kernels.cuda_devices import KernelError
from pallas_kernels.launch.bridge import cuda_call
from pallas_kernels.launch.interpreter import interpret, is_interpreted

# The compute capability that the interpreter reports, where a launch depends on it.
INTERPRETED_CAPABILITY = 90


class _Launch(NamedTuple):
    grid: tuple[int, ...]
    constants: tuple[tuple[str, Any], ...]
    num_warps: int
    num_stages: int


class Launch(_Launch):
    """Grid, compile-time constants by name, warps per program, stages of the load pipeline."""

    __slots__ = ()

    def __new__(
        cls,
        grid: Sequence[int],
        constants: Mapping[str, Any],
        num_warps: int = 4,
        num_stages: int = 3,
    ) -> Launch:
        # Sorted pairs and not a mapping, because a launch is part of a compiled program's key.
        pairs = tuple(sorted(constants.items()))
        return super().__new__(cls, tuple(grid), pairs, num_warps, num_stages)


class Shape(NamedTuple):
    """Shape and dtype of a new array, hashable in every version of jax."""

    shape: tuple[int, ...]
    dtype: np.dtype


def call_kernel(
    kernel: Any,
    *arrays: Array,
    launch: Launch | Callable[[int], Launch],
    out: Sequence[jax.ShapeDtypeStruct] = (),
    in_place: Sequence[int] = (),
) -> tuple[Array, ...]:
    """Run a Triton kernel; returns its new arrays, then the arrays that it wrote in place."""
    shapes = tuple(Shape(tuple(new.shape), np.dtype(new.dtype)) for new in out)
    return tuple(
        kernel_call.bind(
            *arrays, kernel=kernel, launch=launch, out=shapes, in_place=tuple(in_place)
        )
    )  # fmt: skip


kernel_call = jex.core.Primitive("triton_kernel")
kernel_call.multiple_results = True


@kernel_call.def_abstract_eval
def _shapes(*arrays: Any, out: tuple[Shape, ...], in_place: tuple[int, ...], **_: Any) -> list[Any]:
    new = [jax.core.ShapedArray(*shape) for shape in out]
    return [*new, *(arrays[index].update(weak_type=False) for index in in_place)]


@kernel_call.def_impl
def _eager(*arrays: Any, **parameters: Any) -> Any:
    return jax.jit(partial(kernel_call.bind, **parameters))(*arrays)


def launch_for(launch: Launch | Callable[[int], Launch], capability: int) -> Launch:
    return launch if isinstance(launch, Launch) else launch(capability)


def _lower_cuda(
    context: Any, *operands: Any, kernel: Any, launch: Any, out: Any, in_place: tuple[int, ...]
) -> Any:  # fmt: skip
    device, capability = lowered_for(context)
    plan = launch_for(launch, capability)
    if is_interpreted(kernel):
        raise KernelError(
            f"{kernel.__name__}: triton was imported with TRITON_INTERPRET=1, so there is no "
            f"kernel to compile for {device}. Unset it and start again."
        )
    return cuda_call(context, operands, kernel, plan, in_place, device, capability)


def _lower_cpu(
    context: Any, *operands: Any, kernel: Any, launch: Any, out: Any, in_place: tuple[int, ...]
) -> Any:  # fmt: skip
    if not is_interpreted(kernel):
        raise KernelError(
            f"{kernel.__name__} is a Triton kernel for NVIDIA GPUs and cannot run on the CPU. Use "
            "implementation='xla', or set TRITON_INTERPRET=1 before triton is imported to run it "
            "in Triton's interpreter (for tests; it is very slow)."
        )
    plan = launch_for(launch, INTERPRETED_CAPABILITY)
    results = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in context.avals_out]

    def on_host(*arrays: Any) -> list[np.ndarray]:
        return interpret(kernel, arrays, plan, results[: len(out)], in_place)

    callback = mlir.lower_fun(
        lambda *arrays: jax.pure_callback(on_host, results, *arrays), multiple_results=True
    )
    return callback(context, *operands)


def lowered_for(context: Any) -> tuple[Any, int]:
    """Return the device that is lowered for, and its compute capability (90 for 9.0)."""
    module = context.module_context
    mesh = getattr(module.axis_context, "mesh", None)
    # Inside shard_map the mesh has the devices, except an abstract mesh in a nested shard_map.
    # Without one, all devices of the backend are alike.
    has_devices = isinstance(mesh, jax.sharding.Mesh)
    device = mesh.devices.flat[0] if has_devices else module.backend.devices()[0]
    major, minor = device.compute_capability.split(".")
    return device, int(major) * 10 + int(minor)


mlir.register_lowering(kernel_call, _lower_cuda, platform="cuda")
mlir.register_lowering(kernel_call, _lower_cpu, platform="cpu")
